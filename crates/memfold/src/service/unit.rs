//! Reading units of systemd (systemd.unit(5), systemd.syntax(7)): the file of a service and its drop-ins, as systemd merges them.
//!
//! What it is not: a copy of systemd. Of a setting with one value the last counts, and an empty one takes back those before it; the rest
//! is up to who asks.

use anyhow::{bail, Context};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

/// Where units lie, the most important first (systemd.unit(5), "System Unit Search Path").
const DIRECTORIES: [&str; 8] = [
    "etc/systemd/system",
    "run/systemd/system",
    "run/systemd/generator",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
    "run/systemd/generator.late",
    "run/systemd/transient",
];
/// Where a machine's owner writes.
const OWNERS: &str = "etc/systemd/system";
/// What a unit's name ends in (systemd.unit(5)).
const KINDS: [&str; 11] = [
    "service",
    "socket",
    "device",
    "mount",
    "automount",
    "swap",
    "target",
    "path",
    "timer",
    "slice",
    "scope",
];
/// How many names a unit may have on the way to its file.
const MOST_NAMES: usize = 8;

/// A service.
#[derive(Debug)]
pub struct Unit {
    /// Its name, that of its file if it was asked for by another, such as `redis-server.service`.
    pub name: String,
    /// The settings of its section `[Service]`, each with its values in their order.
    settings: HashMap<String, Vec<String>>,
    /// Whether a socket of the same name starts it.
    pub has_socket: bool,
}

/// The drop-ins of a service as its owner writes them.
pub fn dropins(root: &Path, name: &str) -> PathBuf {
    root.join(OWNERS).join(format!("{name}.d"))
}

impl Unit {
    /// Reads a service below `root`, leaving the drop-in `except` out.
    ///
    /// # Errors
    /// There is no such service, or a file cannot be read.
    pub fn read(root: &Path, name: &str, except: &str) -> anyhow::Result<Unit> {
        let (name, file) = find(root, name)?;
        let mut unit = Unit { settings: HashMap::new(), has_socket: has_socket(root, &name), name };
        unit.add(&fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?);
        // One file a name: that in the more important directory.
        let mut files = BTreeMap::new();
        for dir in DIRECTORIES.iter().rev() {
            for owner in names(&unit.name) {
                let dropins = root.join(dir).join(format!("{owner}.d"));
                for file in fs::read_dir(dropins).into_iter().flatten().flatten() {
                    files.insert(file.file_name(), file.path());
                }
            }
        }
        for (file, path) in files {
            if file != except && path.extension().is_some_and(|extension| extension == "conf") {
                unit.add(
                    &fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?,
                );
            }
        }
        Ok(unit)
    }

    /// Adds what a file says.
    fn add(&mut self, text: &str) {
        let mut section = String::new();
        for line in lines(text) {
            if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                section = name.to_owned();
            } else if let Some((key, value)) = line.split_once('=').filter(|_| section == "Service") {
                let values = self.settings.entry(key.trim().to_owned()).or_default();
                match value.trim() {
                    "" => values.clear(),
                    value => values.push(value.to_owned()),
                }
            }
        }
    }

    /// All values of a setting.
    pub fn all(&self, key: &str) -> &[String] {
        self.settings.get(key).map_or(&[], Vec::as_slice)
    }

    /// Whether a setting was last set to nothing.
    pub fn is_empty(&self, key: &str) -> bool {
        self.settings.get(key).is_some_and(Vec::is_empty)
    }

    /// The value of a setting that has one.
    pub fn last(&self, key: &str) -> Option<&str> {
        self.all(key).last().map(String::as_str)
    }

    /// The words of all values of a setting, without the quotation marks that keep them together.
    pub fn words(&self, key: &str) -> Vec<String> {
        self.all(key).iter().flat_map(|value| words(value)).collect()
    }

    /// The value of a variable that the service's programs get (`Environment=`).
    pub fn variable(&self, name: &str) -> Option<String> {
        let value = |word: &String| word.strip_prefix(name)?.strip_prefix('=').map(str::to_owned);
        self.words("Environment").iter().filter_map(value).next_back().filter(|value| !value.is_empty())
    }

    /// Whether a setting that is true or false is true.
    pub fn is(&self, key: &str) -> bool {
        self.last(key).is_some_and(|value| {
            matches!(value.to_lowercase().as_str(), "1" | "yes" | "y" | "true" | "t" | "on")
        })
    }
}

/// Whether a value is that of a setting that is turned off.
pub fn is_no(value: &str) -> bool {
    matches!(value.to_lowercase().as_str(), "0" | "no" | "n" | "false" | "f" | "off")
}

/// The words of a value (systemd.syntax(7), "Quoting"), with specifiers left as they are but for the one that is a per cent sign.
fn words(value: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            _ if quote == Some(c) => quote = None,
            '"' | '\'' if quote.is_none() => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            '\\' => word.get_or_insert_default().extend(chars.next()),
            _ if c.is_whitespace() && quote.is_none() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words.into_iter().map(|word| word.replace("%%", "%")).collect()
}

/// The lines that say something, with those that go on in the next joined.
fn lines(text: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut goes_on = false;
    for line in text.lines() {
        let line = line.trim();
        // Between the parts of a line comments are left out, too.
        if line.starts_with(['#', ';']) || line.is_empty() && !goes_on {
            continue;
        }
        let (part, more) = line.strip_suffix('\\').map_or((line, false), |part| (part.trim_end(), true));
        match all.last_mut().filter(|_| goes_on) {
            Some(last) => {
                last.push(' ');
                last.push_str(part);
            }
            None => all.push(part.to_owned()),
        }
        goes_on = more;
    }
    all
}

/// The unit's real name and its file.
fn find(root: &Path, name: &str) -> anyhow::Result<(String, PathBuf)> {
    // A name may have a dot in it, such as php8.2-fpm.
    let is_whole = name.rsplit_once('.').is_some_and(|(_, kind)| KINDS.contains(&kind));
    let mut name = if is_whole { name.to_owned() } else { format!("{name}.service") };
    if !name.ends_with(".service") || name.contains('/') {
        bail!("{name} is no service of systemd");
    }
    for _ in 0..MOST_NAMES {
        let Some((given, file)) =
            candidates(root, &name).into_iter().find(|(_, file)| fs::symlink_metadata(file).is_ok())
        else {
            bail!("there is no service {name}; `systemctl list-units --type=service` lists those that run");
        };
        let Ok(link) = fs::read_link(&file) else {
            return Ok((name, file));
        };
        if link == Path::new("/dev/null") {
            bail!("{name} is masked");
        }
        let target = link.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        // A link to a file of the same name only says where that is.
        if target == given {
            let whole = if link.is_absolute() {
                root.join(link.strip_prefix("/").unwrap_or(&link))
            } else {
                file.parent().unwrap_or(root).join(&link)
            };
            return Ok((name, whole));
        }
        name = target;
    }
    bail!("{name} has too many names")
}

/// The files that could be a unit's: its own, and its template's, each with the name in it.
fn candidates(root: &Path, name: &str) -> Vec<(String, PathBuf)> {
    let of = |name: String| DIRECTORIES.map(|dir| (name.clone(), root.join(dir).join(&name)));
    names(name).into_iter().flat_map(of).collect()
}

/// A unit's name, and that of its template if it is an instance.
fn names(name: &str) -> Vec<String> {
    let parts = name.split_once('@').zip(name.rsplit_once('.'));
    let template = parts.filter(|((_, instance), (_, kind))| instance.len() > kind.len() + 1);
    let template = template.map(|((before, _), (_, kind))| format!("{before}@.{kind}"));
    [name.to_owned()].into_iter().chain(template).collect()
}

fn has_socket(root: &Path, name: &str) -> bool {
    let Some(stem) = name.strip_suffix(".service") else { return false };
    let socket = format!("{stem}.socket");
    candidates(root, &socket).iter().any(|(_, file)| file.is_file())
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A root with these files.
    pub fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn a_service_is_its_file_and_its_drop_ins_as_systemd_merges_them() {
        let root = root(&[
            (
                "usr/lib/systemd/system/db@.service",
                "[Unit]\nUser=none\n[Service]\nExecStart=/bin/a \\\n# no\n  -b\nUser=x\nPrivateTmp=yes\n",
            ),
            ("usr/lib/systemd/system/db@.service.d/10.conf", "[Service]\nUser=y\n"),
            ("etc/systemd/system/db@1.service.d/20.conf", "[Service]\nExecStart=\nExecStart=/bin/c\n"),
            ("etc/systemd/system/db@1.service.d/ours.conf", "[Service]\nUser=ours\n"),
            ("etc/systemd/system/db@1.service.d/README", "[Service]\nUser=readme\n"),
        ]);
        let unit = Unit::read(root.path(), "db@1.service", "ours.conf").unwrap();
        assert_eq!((unit.last("User"), unit.all("ExecStart")), (Some("y"), &["/bin/c".to_owned()][..]));
        assert!(unit.is("PrivateTmp") && !unit.is("PrivateDevices") && !unit.has_socket);
        let plain = Unit::read(root.path(), "db@2", "ours.conf").unwrap();
        assert_eq!((plain.name.as_str(), plain.last("ExecStart")), ("db@2.service", Some("/bin/a -b")));
    }

    #[test]
    fn words_are_kept_together_by_quotation_marks_and_the_last_value_of_a_variable_counts() {
        let text = r#"[Service]
Environment="A=one two" B=1 'C="' D="x y"z E=a\ b F=100%%
Environment=A=last EMPTY=
"#;
        let root = root(&[("lib/systemd/system/x.service", text)]);
        let unit = Unit::read(root.path(), "x", "none").unwrap();
        let variables = ["A", "B", "C", "D", "E", "F"].map(|name| unit.variable(name).unwrap());
        assert_eq!(variables, ["last", "1", "\"", "x yz", "a b", "100%"]);
        assert_eq!(["EMPTY", "OTHER"].map(|name| unit.variable(name)), [None, None]);
    }

    #[test]
    fn a_name_that_is_another_units_leads_to_that_and_a_masked_one_nowhere() {
        let root = root(&[
            ("lib/systemd/system/real.service", "[Service]\nExecStart=/bin/a\n"),
            ("lib/systemd/system/real.socket", "[Socket]\n"),
            ("lib/systemd/system/php8.2-fpm.service", "[Service]\nExecStart=/bin/a\n"),
            ("etc/systemd/system/placeholder", ""),
        ]);
        let etc = root.path().join("etc/systemd/system");
        std::os::unix::fs::symlink("/lib/systemd/system/real.service", etc.join("alias.service")).unwrap();
        std::os::unix::fs::symlink("/dev/null", etc.join("gone.service")).unwrap();
        let unit = Unit::read(root.path(), "alias", "x").unwrap();
        assert_eq!((unit.name.as_str(), unit.has_socket), ("real.service", true));
        assert_eq!(Unit::read(root.path(), "php8.2-fpm", "x").unwrap().name, "php8.2-fpm.service");
        let error = |name| Unit::read(root.path(), name, "x").unwrap_err().to_string();
        assert!(
            error("gone").contains("masked") && error("none").contains("there is no service none.service")
        );
        assert!(error("real.socket").contains("no service of systemd"));
    }
}
