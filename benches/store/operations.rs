//! What a caller asks of a store: pages, one run, keys, begins and ends.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use interpreterd::domain::id::{SessionId, Tenant};
use interpreterd::domain::list::{Page, RunFilter};
use interpreterd::domain::run::{RunKind, RunStatus};
use interpreterd::store::Store;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::fill::{Filled, Known, finish};
use crate::rows::{KEYED, RARE_PROVIDER, claim, key_of, story};
use crate::sample::Times;
use crate::{Failure, Options};

/// A page and the one more that says whether there is another, as the API asks for it.
const LIMIT: u32 = 21;
/// What is thrown away of each at first.
const WARMING: usize = 3;
/// An operation that has taken so long in all has been measured often enough.
const LONG: Duration = Duration::from_secs(10);
/// But not with fewer samples than these.
const LEAST: usize = 20;

/// Measures all operations in turns; gives each with its times.
pub async fn measure(
    store: &Arc<dyn Store>,
    filled: &mut Filled,
    options: &Options,
) -> Result<Vec<(&'static str, Times)>, Failure> {
    let mut measured: Vec<_> = READS.iter().map(|read| (read.name(), Times::default())).collect();
    let mut dice = fastrand::Rng::with_seed(filled.runs);
    for turn in 0..WARMING + options.samples {
        let known = filled.known[dice.usize(0..filled.known.len())];
        let middle = filled.known[filled.known.len() / 2];
        for (read, (_, times)) in READS.iter().zip(&mut measured) {
            if turn == WARMING {
                *times = Times::default();
            }
            if times.whole() < LONG || times.count() < LEAST {
                times.of(read.ask(store, &known, &middle)).await?;
            }
        }
    }
    measured.extend(measure_writes(store, filled, options).await?);
    Ok(measured)
}

async fn measure_writes(
    store: &Arc<dyn Store>,
    filled: &mut Filled,
    options: &Options,
) -> Result<[(&'static str, Times); 5], Failure> {
    let tenant = Tenant::single();
    let mut dice = fastrand::Rng::with_seed(filled.runs);
    let disk = tempfile::tempfile_in(&options.data_dir)?;
    let [mut begins, mut keyed_begins, mut ends, mut ends_with_a_file, mut syncs] =
        [(); 5].map(|()| Times::default());
    for turn in 0..WARMING + options.samples {
        let plain = story(filled.runs * KEYED + 1, SessionId::new(), None);
        let mut keyed = story(filled.runs * KEYED, SessionId::new(), None);
        keyed.claim = Some(claim(&key_of(u64::MAX - filled.runs), &mut dice));
        filled.runs += 2;
        if turn == WARMING {
            for times in
                [&mut begins, &mut keyed_begins, &mut ends, &mut ends_with_a_file, &mut syncs]
            {
                *times = Times::default();
            }
        }
        begins.of(async { Ok(store.begin_run(&tenant, &plain.begun, None).await?) }).await?;
        let taken = keyed.claim.as_ref();
        keyed_begins.of(async { Ok(store.begin_run(&tenant, &keyed.begun, taken).await?) }).await?;
        ends.of(finish(store, &plain)).await?;
        ends_with_a_file.of(finish(store, &keyed)).await?;
        syncs.of(async { sync(&disk, turn as u64) }).await?;
    }
    Ok([
        ("begin", begins),
        ("begin with a key", keyed_begins),
        ("finish", ends),
        ("finish with a file", ends_with_a_file),
        ("fdatasync of 8 KiB, the disk's own part", syncs),
    ])
}

/// What a database does that has each commit on the disk before it answers, and nothing else.
fn sync(disk: &File, turn: u64) -> Result<(), Failure> {
    disk.write_all_at(&[turn as u8; 8192], turn * 8192)?;
    Ok(disk.sync_data()?)
}

/// Something that is read.
#[derive(Clone, Copy)]
enum Read {
    Newest,
    Oldest,
    Deep,
    Kind,
    Status,
    NoSuchStatus,
    Session,
    Provider,
    NoSuchProvider,
    Since,
    SinceNow,
    SinceOldestFirst,
    Until,
    KindAndStatus,
    RareKindAndStatus,
    SessionAndStatus,
    Run,
    Claim,
}

const READS: [Read; 18] = [
    Read::Newest,
    Read::Oldest,
    Read::Deep,
    Read::Kind,
    Read::Status,
    Read::NoSuchStatus,
    Read::Session,
    Read::Provider,
    Read::NoSuchProvider,
    Read::Since,
    Read::SinceNow,
    Read::SinceOldestFirst,
    Read::Until,
    Read::KindAndStatus,
    Read::RareKindAndStatus,
    Read::SessionAndStatus,
    Read::Run,
    Read::Claim,
];

impl Read {
    /// How it stands in the table.
    const fn name(self) -> &'static str {
        match self {
            Self::Newest => "page: newest",
            Self::Oldest => "page: oldest first",
            Self::Deep => "page: anywhere, by cursor",
            Self::Kind => "page: kind (3 %)",
            Self::Status => "page: status (0.1 %)",
            Self::NoSuchStatus => "page: status that no run has",
            Self::Session => "page: session_id",
            Self::Provider => "page: provider (5 %)",
            Self::NoSuchProvider => "page: provider that no run has",
            Self::Since => "page: since the middle",
            Self::SinceNow => "page: since the last run",
            Self::SinceOldestFirst => "page: since the middle, oldest first",
            Self::Until => "page: until the middle",
            Self::KindAndStatus => "page: kind and status (0.08 %)",
            Self::RareKindAndStatus => "page: kind and status (0.003 %)",
            Self::SessionAndStatus => "page: session_id and status",
            Self::Run => "one run",
            Self::Claim => "claim",
        }
    }

    async fn ask(
        self,
        store: &Arc<dyn Store>,
        known: &Known,
        middle: &Known,
    ) -> Result<(), Failure> {
        let tenant = Tenant::single();
        match self {
            Self::Run => {
                store.run(&tenant, known.run_id).await?.ok_or("a run is gone")?;
            }
            Self::Claim => {
                let key = key_of(known.number);
                store.claimed(&tenant, &key).await?.ok_or("a key is gone")?;
            }
            _ => {
                let (filter, page) = self.page(known, middle);
                let found = store.runs(&tenant, &filter, page).await?;
                let is_right = match self {
                    Self::NoSuchStatus | Self::NoSuchProvider | Self::SinceNow => found.is_empty(),
                    // chance may have given a small store none, and the oldest has none before it
                    Self::Deep
                    | Self::Status
                    | Self::KindAndStatus
                    | Self::RareKindAndStatus
                    | Self::SessionAndStatus => true,
                    _ => !found.is_empty(),
                };
                if !is_right {
                    return Err(format!("{}: {} runs", self.name(), found.len()).into());
                }
            }
        }
        Ok(())
    }

    fn page(self, known: &Known, middle: &Known) -> (RunFilter, Page) {
        let any = RunFilter::default();
        let newest = Page { limit: LIMIT, after: None, descending: true };
        let from = |after: Uuid| Page { after: Some(after), ..newest };
        let oldest = Page { descending: false, ..newest };
        let (kind, status) = (Some(RunKind::Interpret), Some(RunStatus::Cancelled));
        let provider = |name: &str| Some(name.to_owned());
        match self {
            Self::Newest | Self::Run | Self::Claim => (any, newest),
            Self::Oldest => (any, oldest),
            Self::Deep => (any, from(known.run_id.uuid())),
            Self::Kind => (RunFilter { kind, ..any }, newest),
            Self::Status => (RunFilter { status, ..any }, newest),
            Self::NoSuchStatus => (RunFilter { status: Some(RunStatus::Running), ..any }, newest),
            Self::Session => (RunFilter { session_id: Some(known.session_id), ..any }, newest),
            Self::Provider => (RunFilter { provider: provider(RARE_PROVIDER), ..any }, newest),
            Self::NoSuchProvider => (RunFilter { provider: provider("bedrock"), ..any }, newest),
            Self::Since => (RunFilter { since: Some(middle.created_at), ..any }, newest),
            Self::SinceNow => (RunFilter { since: Some(OffsetDateTime::now_utc()), ..any }, newest),
            Self::SinceOldestFirst => (RunFilter { since: Some(middle.created_at), ..any }, oldest),
            Self::Until => (RunFilter { until: Some(middle.created_at), ..any }, newest),
            Self::KindAndStatus => (RunFilter { kind: Some(RunKind::Exec), status, ..any }, newest),
            Self::RareKindAndStatus => (RunFilter { kind, status, ..any }, newest),
            Self::SessionAndStatus => {
                let session_id = Some(known.session_id);
                (RunFilter { session_id, status: Some(RunStatus::Success), ..any }, newest)
            }
        }
    }
}
