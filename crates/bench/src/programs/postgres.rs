//! A PostgreSQL cluster of our own: pgbench, then a session whose temporary table lies in memory of its own, which other
//! than the shared buffers is private.

use super::install::{path, prepare};
use super::place::{is_root, Place, Started, NOBODY};
use super::subject::{bursts, Hot, Subject};
use super::Kind;
use anyhow::{bail, ensure, Context, Result};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Bytes that a row takes, about.
const EACH: u64 = 640;
/// Transactions in a burst of the small load, a connection each burst: some hundredths of a second.
const BURST: u64 = 200;
/// How long the server may take to answer for the first time.
const PATIENCE: Duration = Duration::from_secs(60);
/// The text of a row, made of its number.
const BODY: &str = "md5(i::text) || ' ' || md5((i * 7)::text) || substr(repeat('the order was left with a neighbour because nobody \
                    opened please call before delivery and ask for size exchange wrong colour agreed refund customer parcel ', 7), \
                    (1 + (i * 37) % 400)::int, 500)";

/// A running server and the session that keeps the table.
pub(super) struct Server {
    started: Started,
    session: Session,
    dir: PathBuf,
    bytes: u64,
    rows: u64,
}

/// psql, told what to do on its standard input; ended when dropped.
struct Session {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    log: PathBuf,
}

impl Server {
    /// Makes a cluster and starts its server.
    ///
    /// # Errors
    /// When a program of postgres's fails.
    pub(super) fn start(place: &Place<'_>) -> Result<Server> {
        let dir = place.dir;
        let mut make = Command::new(path("initdb")?);
        make.args(["-D", "data", "-U", "postgres", "--no-sync", "-A", "trust"]).current_dir(dir);
        let folder = dir.display().to_string();
        let arguments = ["-D", "data", "-k", &folder, "-c", "listen_addresses=", "-c", "fsync=off"];
        let program = Kind::Postgres.path()?;
        let mut command = if is_root() {
            // The server refuses to run as root.
            make.uid(NOBODY).gid(NOBODY);
            place.command_as_nobody(&program, &arguments)?
        } else {
            place.command(&program, &arguments)
        };
        prepare(&mut make)?;
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut started = place.spawn(command)?;
        let end = Instant::now() + PATIENCE;
        while prepare(client("psql", dir)?.args(["-c", "select 1"])).is_err() {
            ensure!(
                started.runs()? && Instant::now() < end,
                "postgres does not answer: {}",
                started.last_words()
            );
            sleep(Duration::from_millis(50));
        }
        let session = Session::start(dir)?;
        let rows = (place.bytes / EACH).max(1);
        Ok(Server { started, session, dir: dir.to_owned(), bytes: place.bytes, rows })
    }
}

/// A command of a client of the server in `dir`.
fn client(name: &str, dir: &Path) -> Result<Command> {
    let mut command = Command::new(path(name)?);
    command.current_dir(dir).env("PGHOST", dir).env("PGUSER", "postgres").env("PGDATABASE", "postgres");
    Ok(command)
}

impl Session {
    fn start(dir: &Path) -> Result<Session> {
        let mut command = client("psql", dir)?;
        command.args(["-qAtX", "-v", "ON_ERROR_STOP=1"]);
        let log = dir.join("psql");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(fs::File::create(&log)?);
        let mut child = command.spawn().context("cannot start psql")?;
        let (requests, answers) = child.stdin.take().zip(child.stdout.take()).context("psql has no pipes")?;
        Ok(Session { child, requests, answers: BufReader::new(answers), log })
    }

    /// Has statements carried out, the last of which gives one number.
    fn number(&mut self, sql: &str) -> Result<u64> {
        writeln!(self.requests, "{sql}").context("psql has ended")?;
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            bail!("psql ended: {}", fs::read_to_string(&self.log).unwrap_or_default().trim());
        }
        line.trim().parse().with_context(|| format!("psql answered {line:?}"))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Subject for Server {
    fn started(&mut self) -> &mut Started {
        &mut self.started
    }

    fn load(&mut self) -> Result<u64> {
        prepare(client("pgbench", &self.dir)?.args(["-i", "-q", "-s", "2"]))?;
        prepare(client("pgbench", &self.dir)?.args(["-n", "-c", "4", "-t", "500"]))?;
        let (rows, mib) = (self.rows, ((self.bytes * 5 / 4) >> 20).max(8));
        self.session.number(&format!(
            "set temp_buffers = '{mib}MB'; create temp table record as select i as id, {BODY} as body \
             from generate_series(1::bigint, {rows}) i; select count(*) from record;"
        ))
    }

    fn spoil(&mut self) -> Result<()> {
        let middle = self.rows.div_ceil(2);
        let sql =
            format!("update record set body = body || '!' where id = {middle}; select count(*) from record;");
        self.session.number(&sql).map(drop)
    }

    fn hot(&mut self, time: Duration) -> Result<Hot> {
        bursts(time, |_, times| {
            let count = BURST.to_string();
            prepare(client("pgbench", &self.dir)?.args([
                "-n",
                "-S",
                "-t",
                &count,
                "-l",
                "--log-prefix=burst",
            ]))?;
            for entry in fs::read_dir(&self.dir)?.flatten() {
                if entry.file_name().to_string_lossy().starts_with("burst") {
                    // Client, number, time in us, script, and when it was.
                    let text = fs::read_to_string(entry.path())?;
                    times.extend(
                        text.lines()
                            .filter_map(|line| line.split(' ').nth(2)?.parse::<u64>().ok())
                            .map(|us| us * 1000),
                    );
                    fs::remove_file(entry.path())?;
                }
            }
            Ok(())
        })
    }

    fn verify(&mut self) -> Result<u64> {
        let body = BODY.replace("i::text", "id::text").replace("i * ", "id * ");
        self.session.number(&format!(
            "select abs({rows} - count(*)) + count(*) filter (where body is distinct from {body}) + (select case when \
             sum(abalance) = (select sum(delta) from pgbench_history) then 0 else 1 end from pgbench_accounts) from record;",
            rows = self.rows
        ))
    }

    fn leave(&mut self) -> Result<()> {
        // The fast way: sessions are ended. `memfold run` passes the signal on.
        // SAFETY: sends a signal to a child of ours that is not reaped.
        let sent = unsafe { libc::kill(self.started.pid() as i32, libc::SIGINT) };
        ensure!(sent == 0, "postgres is gone");
        Ok(())
    }
}
