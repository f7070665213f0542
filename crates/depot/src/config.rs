//! Which engines there are, and how they are used, as a user has chosen it.
//!
//! What it is not: a look at them, whether they are there and will do.

use crate::connection;
use anyhow::{bail, Context, Result};
use memfold_pager::tier::choice::Engines as Choice;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};
use std::path::Path;
use std::time::Duration;

/// Each expiry is renewed so many times before it comes.
pub const RENEWALS: u32 = 4;
const DEFAULT_PORT: u16 = 6379;

/// Which engines, and how they are used. Shared by all connections.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) nodes: Vec<ConnectionInfo>,
    /// Where nobody has said, it is two where there are two of them, of a cluster also where one is named.
    pub(crate) copies: Option<usize>,
    pub(crate) expire: Duration,
    /// Whether the engines are nodes of a cluster, of which there may be more.
    pub(crate) cluster: bool,
}

impl Config {
    /// From what a user chose. Reads the file with the password. Whether the engines are a cluster's is what [`Config::check`] has found.
    ///
    /// # Errors
    /// An address or that file makes no sense, or others may read it.
    pub fn new(choice: &Choice<'_>, cluster: bool) -> Result<Config> {
        let (user, password) =
            choice.auth.map(|file| read_auth(Path::new(file))).transpose()?.unwrap_or_default();
        let node = |address: &str| -> Result<ConnectionInfo> {
            let (host, port) = split(address)?;
            let address = match choice.by_tls() {
                false => ConnectionAddr::Tcp(host, port),
                true => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
            };
            // It has nothing to say of itself, and one question fewer to wait for.
            let mut how = RedisConnectionInfo::default().set_skip_set_lib_name();
            if let Some(password) = &password {
                how = how.set_password(password);
            }
            if let Some(user) = &user {
                how = how.set_username(user);
            }
            Ok(address.into_connection_info()?.set_redis_settings(how))
        };
        let nodes = choice.addresses().map(node).collect::<Result<_>>()?;
        let expire = Duration::from_nanos(choice.expire.0);
        Ok(Config { nodes, copies: choice.copies, expire, cluster })
    }

    /// For how long an engine keeps what nobody says is wanted.
    pub fn expire(&self) -> Duration {
        self.expire
    }

    /// Whether one engine's end would lose what is kept.
    pub fn is_single(&self) -> bool {
        self.copies() < 2
    }

    /// On how many engines everything is kept.
    pub fn copies(&self) -> usize {
        self.copies.unwrap_or(self.nodes.len().min(2))
    }

    /// The same, as [`Config::check`] has found it.
    #[must_use]
    pub fn with_copies(self, copies: usize) -> Config {
        Config { copies: Some(copies), ..self }
    }

    /// A client's connection to the first of them, made as all are.
    ///
    /// # Errors
    /// What the client says.
    pub fn connect_to_first(&self) -> redis::RedisResult<redis::Connection> {
        connection::plain(&self.nodes[0])
    }

    /// Whether the engines are nodes of a cluster.
    pub fn is_cluster(&self) -> bool {
        self.cluster
    }
}

/// User and password from a file: `PASSWORD`, or `USER PASSWORD`, in its first line.
fn read_auth(file: &Path) -> Result<(Option<String>, Option<String>)> {
    use std::os::unix::fs::MetadataExt;
    let shown = file.display();
    let mode = std::fs::metadata(file).with_context(|| format!("cannot read {shown}"))?.mode();
    if mode & 0o077 != 0 {
        bail!("{shown} has a password, and others may read it: chmod 600 {shown}");
    }
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {shown}"))?;
    let mut words = text.lines().next().unwrap_or("").split_whitespace().map(str::to_owned);
    match (words.next(), words.next(), words.next()) {
        (Some(password), None, None) => Ok((None, Some(password))),
        (Some(user), Some(password), None) => Ok((Some(user), Some(password))),
        _ => bail!("{shown}: a line `PASSWORD` or `USER PASSWORD` is needed"),
    }
}

/// Host and port.
pub fn split(address: &str) -> Result<(String, u16)> {
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
            (host, port.parse().with_context(|| format!("{address}: no such port"))?)
        }
        _ => (address, DEFAULT_PORT),
    };
    Ok((host.trim_matches(['[', ']']).to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn an_address_has_a_host_and_a_port_or_the_usual_one() {
        assert_eq!(split("a:1").unwrap(), ("a".into(), 1));
        assert_eq!(split("a").unwrap(), ("a".into(), DEFAULT_PORT));
        assert_eq!(split("[::1]:7").unwrap(), ("::1".into(), 7));
        assert_eq!(split("[::1]").unwrap(), ("::1".into(), DEFAULT_PORT));
        assert!(split("a:x").is_err());
    }

    #[test]
    fn a_password_comes_from_a_file_that_others_cannot_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("auth");
        let with = |text: &str, mode: u32| {
            std::fs::write(&file, text).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            read_auth(&file)
        };
        assert_eq!(with("secret\n", 0o600).unwrap(), (None, Some("secret".into())));
        assert_eq!(with("me secret\nmore", 0o400).unwrap(), (Some("me".into()), Some("secret".into())));
        assert!(with("", 0o600).unwrap_err().to_string().contains("USER PASSWORD"));
        assert!(with("secret", 0o644).unwrap_err().to_string().contains("chmod 600"));
        assert!(read_auth(Path::new("/nowhere")).is_err());
    }
}
