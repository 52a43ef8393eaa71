//! Lists of runs, against a plain list in memory.

use std::collections::BTreeMap;

use interpreterd::domain::id::{RunId, SessionId, Tenant};
use interpreterd::domain::list::{Page, RunFilter};
use interpreterd::domain::run::{RunKind, RunStatus, RunSummary};
use interpreterd::store::connect::Opened;
use time::{Duration, OffsetDateTime};

use super::{ALL, Place, close, end, run, tenants};

every_store! {
    every_filter_and_every_two_give_what_they_say_in_both_orders,
    texts_are_cut_in_lists_and_whole_elsewhere,
}

const COUNT: usize = 350;
const KINDS: [RunKind; 4] = [RunKind::Exec, RunKind::Shell, RunKind::Execute, RunKind::Interpret];
const STATUSES: [RunStatus; 7] = [
    RunStatus::Queued,
    RunStatus::Running,
    RunStatus::Success,
    RunStatus::Error,
    RunStatus::Timeout,
    RunStatus::Unknown,
    RunStatus::Cancelled,
];
const PROVIDERS: [&str; 3] = ["local", "Local", "e2b's \"own\" 数"];

/// When the first run was asked for.
fn beginning() -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap()
}

/// When they were asked for: 300 ms apart, and a little before or after what their id tells.
fn asked_at(number: usize) -> OffsetDateTime {
    let jitter = (number * 137) % 900;
    beginning() + Duration::milliseconds(300 * number as i64 + jitter as i64 - 450)
}

/// RFC 9562, section 5.7.
fn id(number: usize) -> RunId {
    let time = beginning() + Duration::milliseconds(300 * number as i64);
    let milliseconds = (time.unix_timestamp_nanos() / 1_000_000) as u128;
    RunId::from_uuid(uuid::Uuid::from_u128(milliseconds << 80 | 7 << 76 | 2 << 62 | number as u128))
}

/// Runs of all sorts, each sort at its own pace.
fn summary(number: usize, sessions: &[SessionId]) -> RunSummary {
    let mut summary = run(RunStatus::Running).summary;
    summary.id = id(number);
    summary.kind = KINDS[number % 4];
    summary.status = STATUSES[(number / 2) % 7];
    PROVIDERS[(number / 5) % 3].clone_into(&mut summary.provider);
    summary.session_id = sessions[(number * 7 / 3) % sessions.len()];
    summary.created_at = asked_at(number);
    summary
}

/// Written as the service does: begun, and ended where it has ended.
async fn written(opened: &Opened, tenant: &Tenant, summary: &RunSummary) {
    let mut open = summary.clone();
    let has_ended = !matches!(summary.status, RunStatus::Queued | RunStatus::Running);
    if has_ended {
        open.status = RunStatus::Running;
    }
    opened.store.begin_run(tenant, &open, None).await.unwrap();
    if has_ended {
        let run = interpreterd::domain::run::Run::empty(summary.clone());
        assert!(end(opened, tenant, &run, &[]).await);
    }
}

/// What each filter says alone: some that find much, little and nothing.
fn alone(sessions: &[SessionId]) -> Vec<Vec<RunFilter>> {
    let none = RunFilter::default;
    let at = |number: usize| Some(asked_at(number));
    let kind = |kind| RunFilter { kind: Some(kind), ..none() };
    let status = |status| RunFilter { status: Some(status), ..none() };
    let session = |id| RunFilter { session_id: Some(id), ..none() };
    let provider = |name: &str| RunFilter { provider: Some(name.to_owned()), ..none() };
    let since = |place| RunFilter { since: at(place), ..none() };
    let until = |place| RunFilter { until: at(place), ..none() };
    vec![
        KINDS.map(kind).to_vec(),
        STATUSES.map(status).to_vec(),
        vec![session(sessions[0]), session(sessions[4]), session(SessionId::new())],
        vec![provider("local"), provider(PROVIDERS[2]), provider("LOCAL")],
        vec![since(0), since(100), since(COUNT + 9)],
        vec![until(1), until(101), until(300)],
    ]
}

fn both(one: &RunFilter, other: &RunFilter) -> RunFilter {
    RunFilter {
        kind: one.kind.or(other.kind),
        status: one.status.or(other.status),
        session_id: one.session_id.or(other.session_id),
        provider: one.provider.clone().or_else(|| other.provider.clone()),
        since: one.since.or(other.since),
        until: one.until.or(other.until),
    }
}

fn matches(run: &RunSummary, filter: &RunFilter) -> bool {
    filter.kind.is_none_or(|kind| run.kind == kind)
        && filter.status.is_none_or(|status| run.status == status)
        && filter.session_id.is_none_or(|id| run.session_id == id)
        && filter.provider.as_ref().is_none_or(|provider| run.provider == *provider)
        && filter.since.is_none_or(|since| run.created_at >= since)
        && filter.until.is_none_or(|until| run.created_at < until)
}

async fn every_filter_and_every_two_give_what_they_say_in_both_orders(place: &Place) {
    let opened = place.open().await;
    let (tenant, other) = tenants();
    let sessions: Vec<SessionId> = (0..5).map(|_| SessionId::new()).collect();
    let model: Vec<RunSummary> = (0..COUNT).map(|number| summary(number, &sessions)).collect();
    for (number, summary) in model.iter().enumerate() {
        written(&opened, &tenant, summary).await;
        if number % 10 == 0 {
            let theirs = RunSummary { id: RunId::new(), ..summary.clone() };
            written(&opened, &other, &theirs).await;
        }
    }
    let alone = alone(&sessions);
    let mut filters = vec![RunFilter::default()];
    for (at, values) in alone.iter().enumerate() {
        filters.extend(values.iter().cloned());
        for later in alone[at + 1..].iter().flatten() {
            filters.extend(values.iter().map(|value| both(value, later)));
        }
    }
    assert!(filters.len() > 200);
    for (number, filter) in filters.iter().enumerate() {
        for descending in [false, true] {
            let mut expected: Vec<_> = model.iter().filter(|run| matches(run, filter)).collect();
            if descending {
                expected.reverse();
            }
            let limit = [1000, 37, 10][number % 3];
            let found = walked(&opened, &tenant, filter, Page { limit, after: None, descending });
            assert!(found.await.iter().eq(expected), "{filter:?}, descending {descending}");
        }
    }
    close(opened).await;
}

/// All pages, each after the last of the one before.
async fn walked(
    opened: &Opened,
    tenant: &Tenant,
    filter: &RunFilter,
    page: Page,
) -> Vec<RunSummary> {
    let mut found: Vec<RunSummary> = Vec::new();
    loop {
        let after = found.last().map(|run| run.id.uuid());
        let runs = opened.store.runs(tenant, filter, Page { after, ..page }).await.unwrap();
        assert!(runs.len() <= page.limit as usize);
        let is_last = runs.len() < page.limit as usize;
        found.extend(runs);
        if is_last {
            return found;
        }
    }
}

async fn texts_are_cut_in_lists_and_whole_elsewhere(place: &Place) {
    let opened = place.open().await;
    let (tenant, _) = tenants();
    let mut long = run(RunStatus::Running).summary;
    long.message = Some("🦀".repeat(100_000));
    long.error = Some("é".repeat(501));
    long.metadata = BTreeMap::from([("note".to_owned(), "n".repeat(5000))]);
    opened.store.begin_run(&tenant, &long, None).await.unwrap();
    let whole = opened.store.run(&tenant, long.id).await.unwrap().unwrap().summary;
    assert!(whole == long);
    let listed = &opened.store.runs(&tenant, &RunFilter::default(), ALL).await.unwrap()[0];
    assert_eq!(listed.message, Some(format!("{}…", "🦀".repeat(250))));
    assert_eq!(listed.error, Some(format!("{}…", "é".repeat(500))));
    assert_eq!(listed.metadata, long.metadata);
    close(opened).await;
}
