//! A package index on loopback (PEP 503) with packages that are made here.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Html;
use axum::routing::get;

/// The index; it answers while this is held.
pub struct Index {
    pub url: String,
    inside: Arc<Inside>,
}

#[derive(Default)]
struct Inside {
    /// Packages and their files.
    packages: BTreeMap<String, Vec<(String, Vec<u8>)>>,
    asked: Mutex<Vec<String>>,
    closed: Mutex<bool>,
    opened: Condvar,
}

/// A package of one version.
pub struct Package {
    name: &'static str,
    version: &'static str,
    needs: Vec<String>,
    files: Vec<(String, Vec<u8>)>,
}

impl Package {
    /// With one module that bears its name and says its version.
    pub fn new(name: &'static str, version: &'static str) -> Self {
        let module = format!("{}.py", name.replace('-', "_"));
        let text = format!("VERSION = {version:?}\n").into_bytes();
        Self { name, version, needs: Vec::new(), files: vec![(module, text)] }
    }

    pub fn needing(mut self, requirement: &'static str) -> Self {
        self.needs.push(requirement.to_owned());
        self
    }

    pub fn with(mut self, path: &str, content: impl Into<Vec<u8>>) -> Self {
        self.files.push((path.to_owned(), content.into()));
        self
    }

    fn file_name(&self) -> String {
        format!("{}-{}", self.name.replace('-', "_"), self.version)
    }

    /// The wheel: an archive with the files and what is told of them.
    fn wheel(&self) -> (String, Vec<u8>) {
        let told = format!("{}.dist-info", self.file_name());
        let mut metadata =
            format!("Metadata-Version: 2.1\nName: {}\nVersion: {}\n", self.name, self.version);
        for need in &self.needs {
            metadata.push_str(&format!("Requires-Dist: {need}\n"));
        }
        let wheel = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n";
        let mut files = self.files.clone();
        files.push((format!("{told}/METADATA"), metadata.into_bytes()));
        files.push((format!("{told}/WHEEL"), wheel.as_bytes().to_vec()));
        let mut record: String = files.iter().map(|(path, _)| format!("{path},,\n")).collect();
        record.push_str(&format!("{told}/RECORD,,\n"));
        files.push((format!("{told}/RECORD"), record.into_bytes()));
        (format!("{}-py3-none-any.whl", self.file_name()), archive(&files))
    }
}

impl Index {
    pub fn start(packages: &[Package]) -> Self {
        let mut inside = Inside::default();
        for package in packages {
            let files = inside.packages.entry(package.name.to_owned()).or_default();
            files.push(package.wheel());
        }
        Self::serve(std::net::TcpListener::bind("127.0.0.1:0").unwrap(), inside)
    }

    /// With a package that has source code alone, and a wheel that needs it by its URL. Whoever runs
    /// the source code asks for `built`.
    pub fn with_source() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let setup = format!(
            "import urllib.request\nurllib.request.urlopen('http://{address}/simple/built/')\n\
             from setuptools import setup\nsetup(name='demo-source', version='1.0')\n"
        );
        let file = "demo-source-1.0.tar".to_owned();
        let mut wheel = Package::new("demo-tricky", "1.0");
        wheel.needs.push(format!("demo-source @ http://{address}/files/{file}"));
        let mut inside = Inside::default();
        inside.packages.insert("demo-tricky".to_owned(), vec![wheel.wheel()]);
        let source = tape("demo-source-1.0/setup.py", setup.as_bytes());
        inside.packages.insert("demo-source".to_owned(), vec![(file, source)]);
        Self::serve(listener, inside)
    }

    fn serve(listener: std::net::TcpListener, inside: Inside) -> Self {
        let inside = Arc::new(inside);
        let app = Router::new()
            .route("/simple/{name}/", get(links))
            .route("/files/{name}", get(file))
            .with_state(Arc::clone(&inside));
        listener.set_nonblocking(true).unwrap();
        let url = format!("http://{}/simple", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                axum::serve(listener, app).await.unwrap();
            });
        });
        Self { url, inside }
    }

    /// From now on no question is answered until it is opened.
    pub fn close(&self) {
        *self.inside.closed.lock().unwrap() = true;
    }

    pub fn open(&self) {
        *self.inside.closed.lock().unwrap() = false;
        self.inside.opened.notify_all();
    }

    /// How often a package was asked for.
    pub fn asked_for(&self, name: &str) -> usize {
        self.inside.asked.lock().unwrap().iter().filter(|asked| *asked == name).count()
    }

    /// Waits until a package is asked for.
    pub async fn is_asked_for(&self, name: &str) {
        super::must_come(async {
            while self.asked_for(name) == 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

async fn links(
    State(inside): State<Arc<Inside>>,
    Path(name): Path<String>,
) -> Result<Html<String>, StatusCode> {
    inside.asked.lock().unwrap().push(name.clone());
    let waiting = Arc::clone(&inside);
    tokio::task::spawn_blocking(move || {
        let closed = waiting.closed.lock().unwrap();
        drop(waiting.opened.wait_while(closed, |closed| *closed).unwrap());
    })
    .await
    .unwrap();
    let files = inside.packages.get(&name).ok_or(StatusCode::NOT_FOUND)?;
    let links = files.iter().map(|(name, _)| format!("<a href=\"/files/{name}\">{name}</a>"));
    Ok(Html(format!("<!DOCTYPE html><html><body>{}</body></html>", links.collect::<String>())))
}

async fn file(
    State(inside): State<Arc<Inside>>,
    Path(name): Path<String>,
) -> Result<Vec<u8>, StatusCode> {
    let mut all = inside.packages.values().flatten();
    let found = all.find(|(file, _)| *file == name);
    found.map(|(_, content)| content.clone()).ok_or(StatusCode::NOT_FOUND)
}

/// A tar archive with one file (POSIX ustar).
fn tape(name: &str, content: &[u8]) -> Vec<u8> {
    let mut head = [0; 512];
    let mut put =
        |at: usize, text: &str| head[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000644");
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{:011o}\0{:011o}\0", content.len(), 0));
    put(148, "        0");
    put(257, "ustar");
    put(263, "00");
    let sum: u32 = head.iter().map(|byte| u32::from(*byte)).sum();
    head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut archive = [&head[..], content].concat();
    archive.resize(archive.len().next_multiple_of(512) + 1024, 0);
    archive
}

/// A zip archive whose files are stored as they are (APPNOTE 4.3).
fn archive(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let (mut archive, mut directory) = (Vec::new(), Vec::new());
    for (name, content) in files {
        let offset = u32::try_from(archive.len()).unwrap();
        let size = u32::try_from(content.len()).unwrap();
        let length = u16::try_from(name.len()).unwrap();
        let mut head = Vec::new();
        head.extend([20, 0, 0, 8, 0, 0, 0, 0, 0x21, 0]); // version, UTF-8, stored, a time
        head.extend(checksum(content).to_le_bytes());
        head.extend([size.to_le_bytes(), size.to_le_bytes()].concat());
        head.extend(length.to_le_bytes());
        head.extend([0, 0]);
        archive.extend(b"PK\x03\x04");
        archive.extend(&head);
        archive.extend(name.bytes());
        archive.extend(content);
        directory.extend(b"PK\x01\x02\x14\x03");
        directory.extend(&head);
        directory.extend([0; 6]); // comment, disk, attributes
        directory.extend(0o100_644_u32.wrapping_shl(16).to_le_bytes());
        directory.extend(offset.to_le_bytes());
        directory.extend(name.bytes());
    }
    let (count, start) = (u16::try_from(files.len()).unwrap(), u32::try_from(archive.len()));
    let size = u32::try_from(directory.len()).unwrap();
    archive.extend(directory);
    archive.extend(b"PK\x05\x06\0\0\0\0");
    archive.extend([count.to_le_bytes(), count.to_le_bytes()].concat());
    archive.extend([size.to_le_bytes(), start.unwrap().to_le_bytes()].concat());
    archive.extend([0, 0]);
    archive
}

/// CRC-32 as zip has it.
fn checksum(bytes: &[u8]) -> u32 {
    let step = |sum: u32, byte: &u8| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            if sum & 1 == 1 { (sum >> 1) ^ 0xedb8_8320 } else { sum >> 1 }
        })
    };
    !bytes.iter().fold(!0, step)
}
