//! One run: the load under a policy, and what its log says.

use super::quantity::QUANTITIES;
use super::{Load, Options};
use crate::launch::{plain, Folding};
use anyhow::{bail, ensure, Context, Result};
use memfold_pager::config::Setting;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What one run came to.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// The policy.
    pub policy: String,
    /// Which repeat, from 0.
    pub repeat: usize,
    /// How long the load ran, s.
    pub seconds: f64,
    /// Passes of the page daemon.
    pub passes: usize,
    /// The quantities, in their order.
    pub values: Vec<f64>,
    /// The passes of the process that made most, column by column.
    #[serde(skip)]
    pub curves: Vec<Vec<(f64, f64)>>,
}

impl Run {
    /// The columns of `runs.csv`.
    pub fn head() -> Vec<String> {
        let own = ["policy", "repeat", "seconds", "passes"];
        own.into_iter().chain(QUANTITIES.iter().map(|q| q.column)).map(str::to_owned).collect()
    }

    /// A row of `runs.csv`.
    pub fn row(&self) -> Vec<String> {
        let (repeat, seconds) = ((self.repeat + 1).to_string(), format!("{:.3}", self.seconds));
        let own = [self.policy.clone(), repeat, seconds, self.passes.to_string()];
        own.into_iter().chain(self.values.iter().map(f64::to_string)).collect()
    }
}

/// Runs the load once.
pub fn once(options: &Options, library: &Path, policy: &str, repeat: usize) -> Result<Run> {
    let name: String = policy.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let log = std::path::absolute(options.out.join("runs").join(format!("{name}-{}.csv", repeat + 1)))?;
    // Left by an earlier experiment, if at all.
    let _ = std::fs::remove_file(&log);
    let folding = Folding::new(library)?
        .set(Setting::StartAt, "0")
        .set(Setting::ResidentLimit, &options.limit.to_string())
        .variable("MEMFOLD_POLICY", policy)
        .variable("MEMFOLD_POLICY_LOG", log.to_str().context("the path of --out must be UTF-8")?);
    let began = Instant::now();
    match &options.load {
        Load::Stress => stress(options, &folding)?,
        Load::Redis => redis(options, &folding)?,
        Load::Command(text) => {
            let mut command = Command::new("sh");
            command.args(["-c", text]);
            finish(folding_start(&folding, command)?, text)?;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    read(&log, policy, repeat, seconds)
}

fn folding_start(folding: &Folding, mut command: Command) -> Result<Child> {
    folding.apply(&mut command);
    let name = command.get_program().to_string_lossy().into_owned();
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    child.with_context(|| format!("cannot start {name}; is it installed?"))
}

fn finish(mut child: Child, what: &str) -> Result<()> {
    let status = child.wait()?;
    ensure!(status.success(), "{what}: {status}");
    Ok(())
}

/// As the report had it, but with one worker that keeps its memory and writes it again and again.
fn stress(options: &Options, folding: &Folding) -> Result<()> {
    let mut command = Command::new("stress");
    command.args(["--vm", "1", "--vm-keep", "--quiet"]);
    command.arg("--vm-bytes").arg(options.memory.unwrap_or(0).to_string());
    command.arg("--timeout").arg(options.seconds.to_string());
    finish(folding_start(folding, command)?, "stress")
}

/// Ends a server however its user fares.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn redis(options: &Options, folding: &Folding) -> Result<()> {
    const VALUE: usize = 1024;
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
    let mut command = Command::new("redis-server");
    command.args(["--port", &port, "--save", "", "--appendonly", "no", "--bind", "127.0.0.1"]);
    let server = Server(folding_start(folding, command)?);
    let deadline = Instant::now() + Duration::from_secs(20);
    while std::net::TcpStream::connect(format!("127.0.0.1:{port}")).is_err() {
        ensure!(Instant::now() < deadline, "redis-server does not answer");
        std::thread::sleep(Duration::from_millis(50));
    }
    let keys = (options.memory.unwrap_or(0) / VALUE).to_string();
    let ask = |tests: &str, requests: &str| -> Result<()> {
        let mut command = Command::new("redis-benchmark");
        plain(&mut command);
        command.args(["-p", &port, "-q", "-P", "16", "-d", &VALUE.to_string()]);
        command.args(["-r", &keys, "-n", requests, "-t", tests]);
        let status = command
            .stdout(Stdio::null())
            .status()
            .context("cannot start redis-benchmark; is it installed?")?;
        ensure!(status.success(), "redis-benchmark: {status}");
        Ok(())
    };
    ask("set", &keys)?;
    let until = Instant::now() + Duration::from_secs(options.seconds);
    while Instant::now() < until {
        ask("get", "20000")?;
    }
    drop(server);
    Ok(())
}

/// Reads the log of a run.
fn read(log: &PathBuf, policy: &str, repeat: usize, seconds: f64) -> Result<Run> {
    let Ok(mut reader) = csv::Reader::from_path(log) else {
        bail!("the page daemon made no pass: the load manages no memory, or cannot be folded here (`memfold doctor`)");
    };
    let head = reader.headers()?.clone();
    let place = |name: &str| head.iter().position(|h| h == name).with_context(|| format!("no column {name}"));
    let (pid, columns) =
        (place("pid")?, QUANTITIES.iter().map(|q| place(q.column)).collect::<Result<Vec<_>>>()?);
    let mut passes: BTreeMap<String, Vec<Vec<f64>>> = BTreeMap::new();
    for record in reader.records() {
        let record = record?;
        let row =
            columns.iter().map(|&column| Ok(record[column].parse::<f64>()?)).collect::<Result<Vec<f64>>>()?;
        passes.entry(record[pid].to_owned()).or_default().push(row);
    }
    // A short-lived parent or shell makes passes too; what is looked at is the process that did the work.
    let most = passes.into_values().max_by_key(Vec::len).context("the log is empty")?;
    let values = QUANTITIES.iter().enumerate().map(|(column, quantity)| {
        let sum: f64 = most.iter().map(|row| row[column]).sum();
        if quantity.sum {
            sum
        } else {
            sum / most.len() as f64
        }
    });
    let values = values.collect();
    let curve =
        |column: usize| most.iter().enumerate().map(|(n, row)| ((n + 1) as f64, row[column])).collect();
    let curves = (0..QUANTITIES.len()).map(curve).collect();
    Ok(Run { policy: policy.to_owned(), repeat, seconds, passes: most.len(), values, curves })
}
