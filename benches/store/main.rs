//! Measures the store by itself: how it grows, and how many write at once.

mod database;
mod fill;
mod operations;
mod rows;
mod sample;
mod writers;

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use interpreterd::config::{BlobSettings, StoreSettings};
use interpreterd::store::Store;
use interpreterd::store::connect::{Opened, open};
use interpreterd::telemetry::metrics::Metrics;
use secrecy::SecretString;

use crate::database::Database;
use crate::fill::Filled;

/// How often a store is told that this process is there.
const BEAT: Duration = Duration::from_secs(2);

/// Anything that goes wrong ends the program.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Fills a store with ended runs, step by step, and measures it at each step, as CSV.
#[derive(Parser)]
pub struct Options {
    /// `sqlite`, or a database of Postgres as postgres://...
    #[arg(long)]
    database: String,
    /// Where SQLite, blobs and the notes of what is there lie.
    #[arg(long)]
    pub data_dir: PathBuf,
    /// Numbers of runs to measure at.
    #[arg(long, value_delimiter = ',', default_value = "1000,10000,100000,1000000")]
    sizes: Vec<u64>,
    /// Where the figures go; unset: to the output.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Samples of each operation.
    #[arg(long, default_value_t = 200)]
    pub samples: usize,
    /// Instead: this many writers beside one, on a store of the first of the sizes.
    #[arg(long)]
    writers: Option<usize>,
    /// How long each block of writers takes, in seconds.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// How often writers take turns.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Which shares of what many writers can do without a rest they are to do with rests.
    #[arg(long, value_delimiter = ',', default_value = "0.1,0.4")]
    shares: Vec<f64>,
    /// What `cargo bench` says.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<(), Failure> {
    // `cargo test --all-targets` and `cargo bench` call every benchmark, with options of their own
    if !std::env::args().any(|argument| argument.starts_with("--database")) {
        eprintln!("store: nothing measured; name a --database, or run benches/run.py");
        return Ok(());
    }
    let options = Options::parse();
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(measure(&options))
}

async fn measure(options: &Options) -> Result<(), Failure> {
    let mut out: Box<dyn Write> = match &options.out {
        Some(file) => Box::new(File::create(file)?),
        None => Box::new(std::io::stdout()),
    };
    let mut settings = StoreSettings::default();
    if options.database != "sqlite" {
        settings.database_url = Some(SecretString::from(options.database.clone()));
    }
    std::fs::create_dir_all(&options.data_dir)?;
    let opened =
        open(&options.data_dir, &settings, &BlobSettings::default(), &Metrics::default()).await?;
    let database = Database::of(&options.database, &options.data_dir).await?;
    let seen = tokio::spawn(be_seen(Arc::clone(&opened.store)));
    let measured = match options.writers {
        None => grow(options, &opened, &database, &mut out).await,
        Some(many) => writers::compare(options, many, &opened, &database, &mut out).await,
    };
    seen.abort();
    opened.store.close().await;
    measured
}

/// A replica that is not seen may not write. One that could not say that it is there is told so then.
async fn be_seen(store: Arc<dyn Store>) {
    loop {
        tokio::time::sleep(BEAT).await;
        let _ = store.beat().await;
    }
}

/// Fills, measures, and fills on.
async fn grow(
    options: &Options,
    opened: &Opened,
    database: &Database,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    writeln!(out, "database,runs,operation,p50_ms,p95_ms,p99_ms,samples,seconds_to_fill")?;
    let mut filled = Filled::read(&options.data_dir)?;
    for runs in &options.sizes {
        filled.fill(&opened.store, *runs).await?;
        database.settle().await?;
        let name = database.name();
        for (operation, figures) in operations::measure(&opened.store, &mut filled, options).await?
        {
            writeln!(out, "{name},{runs},\"{operation}\",{figures},{:.1}", filled.seconds)?;
        }
        filled.write(&options.data_dir)?;
        out.flush()?;
    }
    Ok(())
}
