//! Asks a running service whether it is ready.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use super::{AppError, runtime};
use crate::net::{self, ClientPlan};

/// A probe that is slower says as much as one that fails.
const LIMIT: Duration = Duration::from_secs(5);
/// What is told of an answer that is none of ours.
const MAX_TOLD: usize = 1024;

/// Asks the service that listens on this address of this host whether it is ready, and gives its answer.
///
/// # Errors
/// [`AppError`] when it does not answer within five seconds, or says that it is not ready.
pub fn healthcheck(listen: SocketAddr) -> Result<String, AppError> {
    let address = near(listen);
    // not by the proxy that the environment names for others
    let client =
        net::planned(&ClientPlan { limit: Some(LIMIT), direct: true, ..Default::default() })?;
    runtime()?.block_on(async {
        let silent = |error| AppError::Silent(address, error);
        let asked = client.get(format!("http://{address}/readyz")).send().await.map_err(silent)?;
        let is_ready = asked.status().is_success();
        let told = asked.text().await.map_err(silent)?;
        let told: String = told.chars().take(MAX_TOLD).collect();
        if is_ready { Ok(told) } else { Err(AppError::NotReady(address, told)) }
    })
}

/// Where a service that listens so is reached from its own host.
fn near(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_on_every_address_is_asked_on_loopback() {
        for (listen, asked) in [
            ("0.0.0.0:8080", "127.0.0.1:8080"),
            ("[::]:80", "[::1]:80"),
            ("127.0.0.1:1", "127.0.0.1:1"),
            ("10.1.2.3:9000", "10.1.2.3:9000"),
        ] {
            let [listen, asked]: [SocketAddr; 2] =
                [listen, asked].map(|address| address.parse().expect("an address"));
            assert_eq!(near(listen), asked);
        }
    }
}
