//! What the service itself adds to a warm exec over HTTP.
#![expect(
    clippy::unwrap_used,
    reason = "criterion's macros make public items; a benchmark may stop"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use serde_json::Value;

/// The service in a process of its own, and one connection to it that is kept.
struct Service {
    child: Child,
    host: String,
    connection: BufReader<TcpStream>,
    _folder: tempfile::TempDir,
}

impl Service {
    #[expect(clippy::disallowed_methods, reason = "the benchmark starts the service")]
    fn start() -> Self {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_interpreterd"))
            .args(["serve", "--listen", "127.0.0.1:0", "--lifetime-seconds", "86400", "--data-dir"])
            .arg(folder.path().join("data"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let host = line.trim().rsplit('/').next().unwrap().to_owned();
        let connection = TcpStream::connect(&host).unwrap();
        connection.set_nodelay(true).unwrap();
        Self { child, host, connection: BufReader::new(connection), _folder: folder }
    }

    /// One request on the kept connection: nothing of a client library is measured.
    fn call(&mut self, method: &str, path: &str, body: &str) -> Vec<u8> {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.host,
            body.len()
        );
        self.connection.get_mut().write_all(request.as_bytes()).unwrap();
        let mut length = 0;
        loop {
            let mut line = String::new();
            self.connection.read_line(&mut line).unwrap();
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut answer = vec![0; length];
        self.connection.read_exact(&mut answer).unwrap();
        answer
    }

    fn session(&mut self) -> String {
        let session: Value =
            serde_json::from_slice(&self.call("POST", "/v1/sessions", "{}")).unwrap();
        format!("/v1/sessions/{}/exec", session["id"].as_str().unwrap())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sums what `measure` gives for each of the iterations.
fn sum(iterations: u64, mut measure: impl FnMut() -> Duration) -> Duration {
    (0..iterations).map(|_| measure()).sum()
}

fn warm_exec(criterion: &mut Criterion) {
    let mut service = Service::start();
    let path = service.session();
    let body = r#"{"code":"1 + 1"}"#;
    for _ in 0..50 {
        service.call("POST", &path, body);
    }
    let mut exec = || {
        let started = Instant::now();
        let answer = service.call("POST", &path, body);
        let whole = started.elapsed();
        let execution: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!(execution["text"], "2");
        let sandbox = Duration::from_secs_f64(execution["duration_ms"].as_f64().unwrap() / 1000.0);
        (whole, sandbox)
    };
    let mut group = criterion.benchmark_group("warm_exec");
    group.bench_function("whole", |bencher| {
        bencher.iter_custom(|iterations| sum(iterations, || exec().0));
    });
    group.bench_function("in_the_sandbox", |bencher| {
        bencher.iter_custom(|iterations| sum(iterations, || exec().1));
    });
    group.bench_function("own_part", |bencher| {
        bencher.iter_custom(|iterations| {
            sum(iterations, || {
                let (whole, sandbox) = exec();
                whole.saturating_sub(sandbox)
            })
        });
    });
    group.bench_function("http_floor_healthz", |bencher| {
        bencher.iter_custom(|iterations| {
            sum(iterations, || {
                let started = Instant::now();
                service.call("GET", "/healthz", "");
                started.elapsed()
            })
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(50).measurement_time(Duration::from_secs(8));
    targets = warm_exec
}
criterion_main!(benches);
