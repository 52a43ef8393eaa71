//! A bucket of the double of S3, and the wire to it, which tests cut.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::double::Running;
use super::must_come;
use super::server::Server;

pub const NAME: &str = "blobs-of-the-tests";
pub const KEY: &str = "AKIDOFTHETESTS";
pub const SECRET: &str = "SECRETTEST";
const PREFIX: &str = "pre/fix";

/// A bucket of its own behind a wire, ended when dropped.
pub struct Bucket {
    running: Running,
    pub wire: Wire,
    place: String,
}

impl Bucket {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    pub fn start_with(options: &[&str]) -> Self {
        let running = Running::start("s3", "s3 double on ", options);
        let wire = Wire::to(running.url.split_once("://").unwrap().1.parse().unwrap());
        Self { running, wire, place: format!("s3://{NAME}/{PREFIX}") }
    }

    /// Where it is without the wire.
    pub fn url(&self) -> &str {
        &self.running.url
    }

    /// The settings by which a service uses it.
    pub fn settings(&self) -> Vec<(&str, &str)> {
        vec![
            ("BLOBS_URL", &self.place),
            ("BLOBS_ENDPOINT", &self.wire.url),
            ("BLOBS_ACCESS_KEY_ID", KEY),
            ("BLOBS_SECRET_ACCESS_KEY", SECRET),
        ]
    }

    pub fn serve_in(&self, data_dir: &Path, more: &[(&str, &str)]) -> Server {
        Server::start_in(data_dir, &[self.settings().as_slice(), more].concat())
    }

    pub fn serve(&self, more: &[(&str, &str)]) -> Server {
        Server::start(&[self.settings().as_slice(), more].concat())
    }

    /// What is in it besides its clock, by name, with size and hash.
    pub async fn objects(&self) -> BTreeMap<String, Value> {
        let all = self.running.call(Method::GET, "objects", &Value::Null).await;
        let below = |(name, about): (&String, &Value)| {
            let name = name.strip_prefix(PREFIX)?.strip_prefix('/')?;
            (name != "last-sweep").then(|| (name.to_owned(), about.clone()))
        };
        all.as_object().unwrap().iter().filter_map(below).collect()
    }

    /// Uploads in parts that nobody has ended.
    pub async fn uploads(&self) -> u64 {
        self.running.call(Method::GET, "uploads", &Value::Null).await.as_u64().unwrap()
    }

    /// Puts an object there, as if another replica had.
    pub async fn put(&self, blob: &str) {
        let body = json!({"key": format!("{PREFIX}/{blob}")});
        self.running.call(Method::POST, "put", &body).await;
    }

    /// Makes all objects older.
    pub async fn age(&self, seconds: u64) {
        self.running.call(Method::POST, "age", &json!({"seconds": seconds})).await;
    }

    /// Waits until nothing waits in the data folder of a service.
    pub async fn has_all_of(&self, server: &Server) {
        must_come(async {
            while !staged(&server.data_dir).is_empty() {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

/// What waits in a data folder.
pub fn staged(data_dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(data_dir.join("staged")).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// What a wire does with what is sent through it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Passes,
    /// Nobody listens.
    Refuses,
    /// Nothing moves any more.
    Hangs,
    /// A connection breaks once so many bytes have gone either way.
    Cuts(usize),
}

/// A port that passes everything on.
pub struct Wire {
    pub url: String,
    mode: watch::Sender<Mode>,
}

impl Wire {
    fn to(there: SocketAddr) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let (mode, told) = watch::channel(Mode::Passes);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let listener = TcpListener::from_std(listener).unwrap();
                listen(listener, address, there, told).await;
            });
        });
        Self { url: format!("http://{address}"), mode }
    }

    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

/// Until the wire is dropped.
async fn listen(
    listener: TcpListener,
    address: SocketAddr,
    there: SocketAddr,
    mut told: watch::Receiver<Mode>,
) {
    let mut listener = Some(listener);
    loop {
        if *told.borrow_and_update() == Mode::Refuses {
            listener = None;
        } else if listener.is_none() {
            listener = Some(TcpListener::bind(address).await.unwrap());
        }
        let accepted = async {
            match &listener {
                Some(listener) => listener.accept().await.unwrap().0,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = told.changed() => if changed.is_err() { return },
            here = accepted => drop(tokio::spawn(pass(here, there, told.clone()))),
        }
    }
}

/// One connection, until an end closes it or the wire refuses.
async fn pass(mut here: TcpStream, there: SocketAddr, mut told: watch::Receiver<Mode>) {
    let Ok(mut there) = TcpStream::connect(there).await else { return };
    let (mut from_here, mut to_here) = here.split();
    let (mut from_there, mut to_there) = there.split();
    let up = pump(&mut from_here, &mut to_there, told.clone());
    let down = pump(&mut from_there, &mut to_here, told.clone());
    tokio::select! {
        () = up => {}
        () = down => {}
        _ = told.wait_for(|mode| *mode == Mode::Refuses) => {}
    }
}

async fn pump(
    from: &mut (impl AsyncReadExt + Unpin),
    to: &mut (impl AsyncWriteExt + Unpin),
    mut told: watch::Receiver<Mode>,
) {
    let mut passed = 0;
    let mut buffer = vec![0; 64 << 10];
    loop {
        let Ok(count @ 1..) = from.read(&mut buffer).await else { return };
        let Ok(mode) = told.wait_for(|mode| *mode != Mode::Hangs).await.map(|mode| *mode) else {
            return;
        };
        passed += count;
        if matches!(mode, Mode::Cuts(most) if passed > most) {
            return;
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
