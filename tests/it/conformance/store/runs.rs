//! How a run is begun and ended, once.

use futures::future::join_all;
use interpreterd::domain::list::{Page, RunFilter};
use interpreterd::domain::run::{Run, RunStatus};
use interpreterd::store::StoredFile;

use super::{ALL, Place, begun, claim, close, end, ended, file, run, tenants};

every_store! {
    what_is_written_is_read_again_short_or_long,
    the_first_end_of_a_run_stays_short_or_long,
    of_many_ends_at_once_one_is_written,
    a_queued_run_begins_once_and_not_after_its_end,
    an_id_is_used_once_and_the_second_time_takes_no_key,
    an_end_is_written_whole_or_not_at_all,
    two_hundred_files_are_kept_with_their_run,
    many_writes_at_once_are_all_kept,
}

async fn what_is_written_is_read_again_short_or_long(place: &Place) {
    let opened = place.open().await;
    let (tenant, _) = tenants();
    for text in ["short".to_owned(), "long ".repeat(100_000)] {
        let begun = begun(&opened, &tenant).await;
        let id = begun.summary.id;
        assert_eq!(opened.store.run(&tenant, id).await.unwrap(), Some(begun.clone()));
        let ended = ended(begun, &text);
        assert!(end(&opened, &tenant, &ended, &[file("a")]).await);
        assert_eq!(opened.store.run(&tenant, id).await.unwrap(), Some(ended));
        let stored = opened.store.output_file(&tenant, id, "a").await.unwrap();
        assert_eq!(stored, Some(file("a")));
        assert_eq!(opened.store.output_file(&tenant, id, "b").await.unwrap(), None);
        assert_eq!(opened.store.events(&tenant, id).await.unwrap().unwrap(), "line\n");
        assert_eq!(opened.store.conversation(&tenant, id).await.unwrap().unwrap(), "[]");
    }
    close(opened).await;
}

async fn the_first_end_of_a_run_stays_short_or_long(place: &Place) {
    let opened = place.open().await;
    let (tenant, _) = tenants();
    for length in [1, 100_000] {
        let begun = begun(&opened, &tenant).await;
        let first = ended(begun.clone(), &"first".repeat(length));
        assert!(end(&opened, &tenant, &first, &[file("a")]).await);
        let second = ended(begun, &"second".repeat(length));
        assert!(!end(&opened, &tenant, &second, &[file("b")]).await);
        let id = first.summary.id;
        assert!(
            opened.store.run(&tenant, id).await.unwrap().as_ref() == Some(&first),
            "{length}: the first end is not there any more"
        );
        assert_eq!(opened.store.output_file(&tenant, id, "b").await.unwrap(), None);
    }
    close(opened).await;
}

async fn of_many_ends_at_once_one_is_written(place: &Place) {
    let opened = place.open().await;
    let (tenant, _) = tenants();
    for length in [1, 50_000] {
        let begun = begun(&opened, &tenant).await;
        let name = |number: usize| format!("{number:02}");
        let ends: Vec<Run> =
            (0..32).map(|number| ended(begun.clone(), &name(number).repeat(length))).collect();
        let files: Vec<[StoredFile; 1]> = (0..32).map(|number| [file(&name(number))]).collect();
        let all = ends.iter().zip(&files).map(|(run, files)| end(&opened, &tenant, run, files));
        let won: Vec<bool> = join_all(all).await;
        assert_eq!(won.iter().filter(|won| **won).count(), 1);
        let id = begun.summary.id;
        let kept = opened.store.run(&tenant, id).await.unwrap().unwrap();
        for (number, won) in won.into_iter().enumerate() {
            assert_eq!(kept == ends[number], won, "{length}: the text is not the winner's");
            let found = opened.store.output_file(&tenant, id, &name(number)).await.unwrap();
            assert_eq!(found.is_some(), won, "{length}: the files are not the winner's");
        }
    }
    close(opened).await;
}

async fn a_queued_run_begins_once_and_not_after_its_end(place: &Place) {
    let opened = place.open().await;
    let (tenant, other) = tenants();
    let mut queued = run(RunStatus::Queued);
    opened.store.begin_run(&tenant, &queued.summary, None).await.unwrap();
    queued.summary.status = RunStatus::Running;
    assert!(!opened.store.start_run(&other, &queued.summary).await.unwrap(), "not theirs");
    let starts = (0..16).map(|_| opened.store.start_run(&tenant, &queued.summary));
    let started = join_all(starts).await.into_iter().filter(|started| *started.as_ref().unwrap());
    assert_eq!(started.count(), 1);
    let found = opened.store.run(&tenant, queued.summary.id).await.unwrap();
    assert_eq!(found.unwrap().summary.status, RunStatus::Running);

    let cancelled = run(RunStatus::Queued);
    opened.store.begin_run(&tenant, &cancelled.summary, None).await.unwrap();
    let cancelled = ended(cancelled, "");
    assert!(end(&opened, &tenant, &cancelled, &[]).await);
    assert!(!opened.store.start_run(&tenant, &cancelled.summary).await.unwrap());
    assert!(!opened.store.start_run(&tenant, &run(RunStatus::Running).summary).await.unwrap());
    close(opened).await;
}

async fn an_id_is_used_once_and_the_second_time_takes_no_key(place: &Place) {
    let opened = place.open().await;
    let (tenant, other) = tenants();
    let first = begun(&opened, &tenant).await;
    for tenant in [&tenant, &other] {
        let again = opened.store.begin_run(tenant, &first.summary, Some(&claim("run"))).await;
        assert!(again.is_err());
        assert_eq!(opened.store.claimed(tenant, &claim("run").key).await.unwrap(), None);
    }
    assert_eq!(opened.store.run(&other, first.summary.id).await.unwrap(), None);
    let known = super::session();
    opened.store.insert_session(&tenant, &known, None).await.unwrap();
    for tenant in [&tenant, &other] {
        let again = opened.store.insert_session(tenant, &known, Some(&claim("session"))).await;
        assert!(again.is_err());
        assert_eq!(opened.store.claimed(tenant, &claim("session").key).await.unwrap(), None);
    }
    close(opened).await;
}

async fn an_end_is_written_whole_or_not_at_all(place: &Place) {
    let opened = place.open().await;
    let (tenant, _) = tenants();
    let begun = begun(&opened, &tenant).await;
    let (id, ended) = (begun.summary.id, ended(begun.clone(), "whole"));
    let twice = [file("a"), file("b"), file("a")];
    let refused = opened.store.finish_run(&tenant, &super::finish(&opened, &ended, &twice)).await;
    assert!(refused.is_err(), "a run has one file of a name");
    assert_eq!(opened.store.run(&tenant, id).await.unwrap(), Some(begun));
    assert_eq!(opened.store.output_file(&tenant, id, "b").await.unwrap(), None);
    assert!(end(&opened, &tenant, &ended, &twice[..2]).await);
    assert_eq!(opened.store.output_file(&tenant, id, "b").await.unwrap(), Some(file("b")));
    close(opened).await;
}

async fn two_hundred_files_are_kept_with_their_run(place: &Place) {
    let opened = place.open().await;
    let (tenant, other) = tenants();
    let ended = ended(begun(&opened, &tenant).await, "x");
    let id = ended.summary.id;
    let files: Vec<StoredFile> =
        (0..200).map(|number| file(&format!("sub/{number:03} ü.csv"))).collect();
    assert!(end(&opened, &tenant, &ended, &files).await);
    for expected in &files {
        let found = opened.store.output_file(&tenant, id, &expected.path).await.unwrap();
        assert_eq!(found.as_ref(), Some(expected));
        assert_eq!(opened.store.output_file(&other, id, &expected.path).await.unwrap(), None);
    }
    close(opened).await;
}

async fn many_writes_at_once_are_all_kept(place: &Place) {
    let opened = place.open().await;
    let (tenant, _) = tenants();
    let runs: Vec<Run> = (0..300).map(|_| run(RunStatus::Running)).collect();
    let write = |run: &Run| {
        let (run, opened, tenant) = (run.clone(), &opened, &tenant);
        async move {
            opened.store.begin_run(tenant, &run.summary, None).await.unwrap();
            let again = opened.store.begin_run(tenant, &run.summary, None).await;
            assert!(again.is_err(), "an id is used once");
            assert!(end(opened, tenant, &ended(run, "x"), &[file("a")]).await);
        }
    };
    join_all(runs.iter().map(write)).await;
    let filter = RunFilter { status: Some(RunStatus::Success), ..RunFilter::default() };
    let found = opened.store.runs(&tenant, &filter, Page { limit: 1000, ..ALL }).await.unwrap();
    assert_eq!(found.len(), 300);
    close(opened).await;
}
