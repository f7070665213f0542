//! Where memfold listens, and what is said where it cannot: what is in the way, and what to do about it.

use crate::exit;
use std::io;
use std::net::{SocketAddr, TcpListener};

/// A place on the loopback interface: a port, or an address with one.
///
/// # Errors
/// It is none; the text says what is needed.
pub fn place(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok(SocketAddr::from(([127, 0, 0, 1], port)));
    }
    match text.replace("localhost:", "127.0.0.1:").parse::<SocketAddr>() {
        Ok(address) if address.ip().is_loopback() => Ok(address),
        Ok(_) => Err("an address of the loopback interface is needed, such as 127.0.0.1:9275; from another machine take a tunnel: \
                      ssh -L 9275:127.0.0.1:9275 HOST"
            .into()),
        Err(_) => Err("a port is needed, or an address with one such as 127.0.0.1:9275".into()),
    }
}

/// Listens at a port that `option` named.
///
/// # Errors
/// Nobody may listen there, or somebody does.
pub fn at(address: SocketAddr, option: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).map_err(|error| refused(address, option, &error))
}

/// Why nobody can listen at a port that `option` named, and what to do.
pub fn refused(address: SocketAddr, option: &str, error: &io::Error) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::AddrInUse => anyhow::anyhow!(
            "cannot listen at {address}: another program does; `{option} {}` takes another port, and `{option} 0` any that is free",
            address.port().checked_add(1).unwrap_or(9275)
        ),
        io::ErrorKind::AddrNotAvailable => {
            exit::usage(format!("cannot listen at {address}: this machine has no such address; `{option} 127.0.0.1:{}` is one", address.port()))
        }
        io::ErrorKind::PermissionDenied => anyhow::anyhow!(
            "cannot listen at {address}: the lowest ports are root's (net.ipv4.ip_unprivileged_port_start); `{option} 0` takes one that is free"
        ),
        _ => anyhow::anyhow!("cannot listen at {address}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_cannot_be_had_is_said_with_the_remedy() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let said = at(address, "--http").unwrap_err().to_string();
        assert!(said.contains(&address.to_string()) && said.contains("`--http 0`"), "{said}");
        for (kind, part) in [
            (io::ErrorKind::AddrNotAvailable, "--listen 127.0.0.1:80"),
            (io::ErrorKind::PermissionDenied, "root's"),
        ] {
            let said = refused("[::1]:80".parse().unwrap(), "--listen", &kind.into()).to_string();
            assert!(said.contains("[::1]:80") && said.contains(part), "{said}");
        }
    }

    #[test]
    fn places_are_of_the_loopback_interface() {
        assert_eq!(place("8080"), Ok("127.0.0.1:8080".parse().unwrap()));
        assert_eq!(place("localhost:1"), Ok("127.0.0.1:1".parse().unwrap()));
        for other in ["0.0.0.0:1", "192.0.2.1:1", "x", "99999", ""] {
            assert!(place(other).unwrap_err().contains("is needed"), "{other}");
        }
    }
}
