//! Who may read the page, and who may have programs do something.
//!
//! Whoever runs a program on this machine can connect to a port of the loopback interface, and so can a page of any web site in the user's own
//! browser. So a connection is answered if the kernel says that its other end is the user's own or root's ([`Readers`]); a request, if it
//! names this machine as its host, which a name that a stranger's DNS server points here does not (DNS rebinding), and comes from a page of
//! ours, if from any. What changes something needs the token besides.

use hyper::header::{HeaderMap, HeaderName, AUTHORIZATION, HOST, ORIGIN};
use memfold_daemon::token::Token;
use nix::unistd::geteuid;
use procfs::net::{self, TcpNetEntry, TcpState};
use std::net::{IpAddr, SocketAddr};

/// Whose connections are answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readers {
    /// Every user of this machine.
    All,
    /// These users.
    Users(Vec<u32>),
}

impl Readers {
    /// This user, root, and who became this user by sudo(8).
    pub fn own() -> Readers {
        let own = geteuid().as_raw();
        // Only root's word on it counts: anybody can set the variable.
        let sudo = std::env::var("SUDO_UID").ok().filter(|_| own == 0).and_then(|uid| uid.parse().ok());
        Readers::Users([0, own].into_iter().chain(sudo).collect())
    }

    /// Whether the other end of a connection to `own` is one of them. Who is gone already is nobody.
    pub fn have(&self, peer: SocketAddr, own: SocketAddr) -> bool {
        match self {
            Readers::All => true,
            Readers::Users(users) => user_of(peer, own).is_some_and(|user| users.contains(&user)),
        }
    }
}

/// The user whose socket is at `peer` and connected to `own`, by the kernel's tables (proc_net_tcp(5)).
fn user_of(peer: SocketAddr, own: SocketAddr) -> Option<u32> {
    let same =
        |a: SocketAddr, b: SocketAddr| a.port() == b.port() && a.ip().to_canonical() == b.ip().to_canonical();
    let find = |entries: Vec<TcpNetEntry>| {
        let mut entries = entries.into_iter();
        entries.find(|entry| {
            // Of a socket that is closed the table has root for its user.
            entry.state == TcpState::Established
                && same(entry.local_address, peer)
                && same(entry.remote_address, own)
        })
    };
    // A program that uses IPv6 for everything is in the second table.
    let found = net::tcp().ok().and_then(find).or_else(|| net::tcp6().ok().and_then(find));
    found.map(|entry| entry.uid)
}

/// What a request must say of itself.
#[derive(Clone, Debug)]
pub struct Access {
    /// The token that whoever changes something has to have; with none, nobody changes anything.
    pub token: Option<Token>,
}

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is for another host.
    Host,
    /// It is from a page of another site.
    Origin,
    /// It changes something, and nobody may.
    ReadOnly,
    /// It changes something, and has not the token.
    Token,
}

impl Access {
    /// Whether the request may be answered at all.
    pub fn admits(headers: &HeaderMap) -> Result<(), Refusal> {
        let host = one(headers, &HOST).filter(|host| is_this_machine(host)).ok_or(Refusal::Host)?;
        let mut origins = headers.get_all(ORIGIN).iter();
        let is_ours =
            |origin: &[u8]| origin.strip_prefix(b"http://").is_some_and(|from| from == host.as_bytes());
        let from_here = origins.all(|origin| is_ours(origin.as_bytes()));
        // Browsers say so of requests without an origin, too (Fetch Metadata).
        let site = one(headers, &HeaderName::from_static("sec-fetch-site"));
        let from_elsewhere = site.is_some_and(|site| !matches!(site, "same-origin" | "none"));
        if from_here && !from_elsewhere {
            Ok(())
        } else {
            Err(Refusal::Origin)
        }
    }

    /// Whether the request may change something.
    pub fn permits(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let token = self.token.as_ref().ok_or(Refusal::ReadOnly)?;
        let said = one(headers, &AUTHORIZATION).and_then(|said| said.split_once(' '));
        let guess =
            said.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, guess)| guess.trim());
        guess.filter(|guess| token.is(guess.as_bytes())).map(drop).ok_or(Refusal::Token)
    }
}

/// The value of a header that is there once.
fn one<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none())?.to_str().ok()
}

/// Whether a host, with a port or without, is a name or an address of the loopback interface. The port may be any: of a tunnel it is another.
fn is_this_machine(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost")
        || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;
    use std::net::{TcpListener, TcpStream};

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let line = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        lines.iter().map(line).collect()
    }

    #[test]
    fn a_host_of_this_machine_is_admitted_and_no_other() {
        for host in ["127.0.0.1:9275", "localhost:8080", "LOCALHOST", "[::1]:9275", "127.1.2.3"] {
            assert_eq!(Access::admits(&headers(&[("host", host)])), Ok(()), "{host}");
        }
        for host in [
            "evil.example:9275",
            "localhost.evil.example",
            "192.0.2.1:9275",
            "127.0.0.1.nip.io",
            "",
            "[::1",
            "localhost:x",
        ] {
            assert_eq!(Access::admits(&headers(&[("host", host)])), Err(Refusal::Host), "{host}");
        }
        assert_eq!(Access::admits(&HeaderMap::new()), Err(Refusal::Host));
        let mut twice = headers(&[("host", "localhost")]);
        twice.append(HOST, HeaderValue::from_static("evil.example"));
        assert_eq!(Access::admits(&twice), Err(Refusal::Host));
    }

    #[test]
    fn a_page_of_another_site_is_told_nothing() {
        let asked = |more: &[(&'static str, &str)]| {
            Access::admits(&headers(&[&[("host", "localhost:9275")], more].concat()))
        };
        assert_eq!(asked(&[("origin", "http://localhost:9275"), ("sec-fetch-site", "same-origin")]), Ok(()));
        assert_eq!(asked(&[("sec-fetch-site", "none")]), Ok(()));
        for origin in [
            "http://evil.example",
            "http://localhost:9276",
            "https://localhost:9275",
            "null",
            "http://127.0.0.1:9275",
        ] {
            assert_eq!(asked(&[("origin", origin)]), Err(Refusal::Origin), "{origin}");
        }
        for site in ["cross-site", "same-site", ""] {
            assert_eq!(asked(&[("sec-fetch-site", site)]), Err(Refusal::Origin), "{site}");
        }
    }

    #[test]
    fn nobody_changes_anything_without_the_token_and_nobody_at_all_where_there_is_none() {
        use std::os::unix::fs::PermissionsExt;
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "0123456789abcdef").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let access = Access { token: Some(Token::read(file.path()).unwrap()) };
        let may = |said: &str| access.permits(&headers(&[("authorization", said)]));
        assert_eq!((may("Bearer 0123456789abcdef"), may("bearer  0123456789abcdef")), (Ok(()), Ok(())));
        for said in
            ["Bearer 0123456789abcdeg", "Bearer ", "Bearer", "Basic 0123456789abcdef", "0123456789abcdef", ""]
        {
            assert_eq!(may(said), Err(Refusal::Token), "{said}");
        }
        assert_eq!(access.permits(&HeaderMap::new()), Err(Refusal::Token));
        let nobody = Access { token: None };
        assert_eq!(nobody.permits(&headers(&[("authorization", "Bearer x")])), Err(Refusal::ReadOnly));
    }

    #[test]
    fn the_kernel_says_who_is_at_the_other_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap();
        let client = TcpStream::connect(own).unwrap();
        let peer = client.local_addr().unwrap();
        let _accepted = listener.accept().unwrap();
        let uid = geteuid().as_raw();
        assert_eq!(user_of(peer, own), Some(uid));
        assert!(Readers::own().have(peer, own) && Readers::All.have(peer, own));
        assert!(!Readers::Users(vec![uid + 1]).have(peer, own));
        // Who is gone is nobody, not root.
        drop(client);
        assert_eq!(user_of(peer, own), None);
    }
}
