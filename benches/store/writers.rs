//! Many writers beside one: what they can do at most, and what one waits when all have rests.

#![expect(clippy::cast_precision_loss, reason = "counts of some seconds are far from 2^52")]

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use interpreterd::domain::id::{SessionId, Tenant};
use interpreterd::store::Store;
use interpreterd::store::connect::Opened;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::database::Database;
use crate::fill::{Filled, finish};
use crate::rows::{KEYED, story};
use crate::sample::Times;
use crate::{Failure, Options};

/// The rest of the writer that is measured, in the middle.
const REST: Duration = Duration::from_millis(10);
/// A run is written down when it begins and when it ends.
const WRITES: usize = 2;

/// Writes down what one writer and many did without a rest, then with rests, in turns.
pub async fn compare(
    options: &Options,
    many: usize,
    opened: &Opened,
    database: &Database,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let mut filled = Filled::read(&options.data_dir)?;
    filled.fill(&opened.store, options.sizes.first().copied().unwrap_or_default()).await?;
    filled.write(&options.data_dir)?;
    database.settle().await?;
    let columns = "database,writers,load,p50_ms,p95_ms,p99_ms,samples,\
         writes_a_second,writes_a_transaction,writes_a_sync,processors_percent";
    writeln!(out, "{columns}")?;
    let (store, name) = (&opened.store, database.name());
    let length = Duration::from_secs_f64(options.seconds);
    let mut most = 0.0;
    for writers in [1, many] {
        let before = database.done().await?;
        let block = block(store, vec![None; writers], length).await?;
        let after = database.done().await?;
        let writes = (block.all.count() * WRITES) as f64;
        let each = |count: u64| writes / (count.max(1) as f64);
        let transactions = each(after.transactions - before.transactions);
        let syncs = after.syncs.zip(before.syncs).map(|(after, before)| each(after - before));
        let syncs = syncs.map(|each| format!("{each:.2}")).unwrap_or_default();
        most = writes / block.seconds;
        writeln!(
            out,
            "{name},{writers},no rest,{},{most:.0},{transactions:.2},{syncs},{:.0}",
            block.all, block.busy_percent
        )?;
    }
    rested(options, many, most, store, name, out).await
}

/// One alone, and the same one beside others that do a share of the most.
async fn rested(
    options: &Options,
    many: usize,
    most: f64,
    store: &Arc<dyn Store>,
    name: &str,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let length = Duration::from_secs_f64(options.seconds);
    let mut loads = vec![(1, "with rests".to_owned(), vec![Some(REST)], Vec::new())];
    for share in &options.shares {
        let others = many.saturating_sub(1).max(1);
        let rest = Duration::from_secs_f64((others * WRITES) as f64 / (most * share));
        let mut rests = vec![Some(REST)];
        rests.resize(many, Some(rest));
        loads.push((many, format!("{:.0} % of the most", share * 100.0), rests, Vec::new()));
    }
    for _ in 0..options.rounds {
        for (_, _, rests, blocks) in &mut loads {
            blocks.push(block(store, rests.clone(), length).await?);
        }
    }
    for (writers, load, _, blocks) in loads {
        let mut first = Times::default();
        let (mut writes, mut seconds, mut busy) = (0, 0.0, 0.0);
        for block in blocks {
            writes += block.all.count() * WRITES;
            seconds += block.seconds;
            busy += block.busy_percent * block.seconds;
            first.extend(block.first);
        }
        let rate = writes as f64 / seconds;
        writeln!(out, "{name},{writers},{load},{first},{rate:.0},,,{:.0}", busy / seconds)?;
    }
    Ok(())
}

/// What writers did at once.
struct Block {
    /// From begin to end of each run that the first of them wrote.
    first: Times,
    /// The same of all of them.
    all: Times,
    seconds: f64,
    /// How busy the machine's processors were.
    busy_percent: f64,
}

/// Lets writers write for a time, each with rests of that length in the middle, or with none.
async fn block(
    store: &Arc<dyn Store>,
    rests: Vec<Option<Duration>>,
    length: Duration,
) -> Result<Block, Failure> {
    let (started, before) = (Instant::now(), Processors::now()?);
    let mut writers = JoinSet::new();
    for (place, rest) in rests.into_iter().enumerate() {
        let store = Arc::clone(store);
        let writer = write(store, rest, started + length);
        writers.spawn(async move { Ok::<_, Failure>((place, writer.await?)) });
    }
    let (mut first, mut all) = (Times::default(), Times::default());
    while let Some(written) = writers.join_next().await {
        let (place, times) = written??;
        if place == 0 {
            first.extend(times.clone());
        }
        all.extend(times);
    }
    let busy_percent = Processors::now()?.busy_percent_since(&before);
    Ok(Block { first, all, seconds: started.elapsed().as_secs_f64(), busy_percent })
}

/// One writer: rests at random lengths, so that writers meet as those do who know nothing of each other.
async fn write(
    store: Arc<dyn Store>,
    rest: Option<Duration>,
    until: Instant,
) -> Result<Times, Failure> {
    let mut dice = fastrand::Rng::new();
    let mut times = Times::default();
    let session = SessionId::new();
    loop {
        if let Some(rest) = rest {
            tokio::time::sleep(rest.mul_f64(-(1.0 - dice.f64()).ln())).await;
        }
        if Instant::now() >= until {
            return Ok(times);
        }
        // neither a key nor a file
        let story = story(dice.u64(1..1_000_000) * KEYED + 1, session, None);
        times
            .of(async {
                store.begin_run(&Tenant::single(), &story.begun, None).await?;
                finish(&store, &story).await
            })
            .await?;
    }
}

/// How long the machine's processors have worked and idled, in ticks: proc(5), /proc/stat.
struct Processors {
    busy: u64,
    idle: u64,
}

impl Processors {
    fn now() -> Result<Self, Failure> {
        let text = std::fs::read_to_string("/proc/stat")?;
        let line = text.lines().next().unwrap_or_default();
        let ticks: Vec<u64> =
            line.split_whitespace().skip(1).map(str::parse).collect::<Result<_, _>>()?;
        let [user, nice, system, idle, waiting, interrupts, soft, ..] = ticks[..] else {
            return Err("/proc/stat has fewer columns than ever".into());
        };
        Ok(Self { busy: user + nice + system + interrupts + soft, idle: idle + waiting })
    }

    fn busy_percent_since(&self, before: &Self) -> f64 {
        let (busy, idle) = (self.busy - before.busy, self.idle - before.idle);
        100.0 * busy as f64 / ((busy + idle).max(1) as f64)
    }
}
