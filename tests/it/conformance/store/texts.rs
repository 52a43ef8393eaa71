//! Texts of all sorts come back as they were, byte by byte.

use std::collections::BTreeMap;

use interpreterd::domain::execution::{Failure, FailureKind};
use interpreterd::domain::list::RunFilter;
use interpreterd::domain::run::RunStatus;
use interpreterd::domain::session::SessionFailure;
use interpreterd::store::{Finish, StoredFile};
use serde_json::json;

use super::{Place, close, ended, file, finish, run, session, tenants};

every_store! {
    any_text_comes_back_as_it_was,
    a_path_is_kept_however_long_it_is,
    what_no_database_can_hold_is_found_nowhere,
}

/// What databases and JSON have trouble with.
fn texts() -> Vec<String> {
    let all: String = (0..=0x2fff).filter_map(char::from_u32).collect();
    let quotes = "it's \"quoted\" \\ \\u0000 \\0 %s %' ; drop table run; -- $1 ? :a {} '' \"\"";
    vec![
        String::new(),
        "\0".to_owned(),
        "a\0b\0\0c".to_owned(),
        quotes.to_owned(),
        "🦀👩‍👩‍👧‍👦\u{301}\u{202e}\u{feff}\u{fffd}\u{ffff}\u{10ffff}".to_owned(),
        "\r\n\t\u{b}\u{1b}[31m\u{7f}\u{85}\u{2028}".to_owned(),
        all,
        "m".repeat(1 << 20),
        "é\0\"".repeat(200_000),
    ]
}

async fn any_text_comes_back_as_it_was(place: &Place) {
    let opened = place.open().await;
    let (tenant, _) = tenants();
    for (number, text) in texts().into_iter().enumerate() {
        let mut begun = run(RunStatus::Running);
        let summary = &mut begun.summary;
        summary.message = Some(text.clone());
        summary.model = Some(text.clone());
        summary.metadata = BTreeMap::from([(text.clone(), text.clone())]);
        opened.store.begin_run(&tenant, summary, None).await.unwrap();
        let id = summary.id;
        assert!(opened.store.run(&tenant, id).await.unwrap().as_ref() == Some(&begun), "{number}");
        let mut ended = ended(begun, &text);
        let failure =
            Failure { kind: FailureKind::Limit, retry_safe: false, message: text.clone() };
        ended.summary.failure = Some(failure);
        ended.summary.error = Some(text.clone());
        ended.missing_files = vec![text.clone()];
        let path = format!("{}🦀 \"'{number}", text.replace('\0', "0").get(..20).unwrap_or(""));
        let files = [StoredFile { mime: "text/plain; charset=\"ü\"".to_owned(), ..file(&path) }];
        let conversation = Some(json!([text]).to_string());
        let events = Some(text.clone().into_bytes());
        let end = Finish { conversation, events, ..finish(&opened, &ended, &files) };
        assert!(opened.store.finish_run(&tenant, &end).await.unwrap());
        assert!(opened.store.run(&tenant, id).await.unwrap() == Some(ended), "{number}");
        let stored = opened.store.output_file(&tenant, id, &path).await.unwrap();
        assert_eq!(stored.as_ref(), files.first(), "{number}");
        let said = opened.store.conversation(&tenant, id).await.unwrap().unwrap();
        assert!(said == json!([text]).to_string(), "{number}");
        let events = opened.store.events(&tenant, id).await.unwrap();
        assert!(events.unwrap_or_default() == text, "{number}");

        let mut known = session();
        known.metadata = BTreeMap::from([(text.clone(), text.clone())]);
        known.files_dir = Some(text.clone());
        known.failure = Some(SessionFailure { code: "x".to_owned(), message: text });
        opened.store.insert_session(&tenant, &known, None).await.unwrap();
        assert!(opened.store.session(&tenant, known.id).await.unwrap() == Some(known), "{number}");
    }
    close(opened).await;
}

/// Longer than what an index takes, and not to be made shorter.
async fn a_path_is_kept_however_long_it_is(place: &Place) {
    let opened = place.open().await;
    let (tenant, _) = tenants();
    let letters = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
    let mut state: u64 = 1;
    let path: String = (0..4096)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            char::from(letters[(state >> 58) as usize])
        })
        .collect();
    let ended = ended(super::begun(&opened, &tenant).await, "x");
    let long = StoredFile { path: path.clone(), ..file("a") };
    assert!(super::end(&opened, &tenant, &ended, std::slice::from_ref(&long)).await);
    let found = opened.store.output_file(&tenant, ended.summary.id, &path).await.unwrap();
    assert_eq!(found, Some(long));
    close(opened).await;
}

async fn what_no_database_can_hold_is_found_nowhere(place: &Place) {
    let opened = place.open().await;
    let (tenant, _) = tenants();
    let ended = ended(super::begun(&opened, &tenant).await, "x");
    assert!(super::end(&opened, &tenant, &ended, &[file("a")]).await);
    let id = ended.summary.id;
    for path in ["\0", "a\0", "a\0b"] {
        let found = opened.store.output_file(&tenant, id, path).await.unwrap();
        assert_eq!(found, None, "no file has a name with NUL, and asking for one is no fault");
        let filter = RunFilter { provider: Some(path.to_owned()), ..RunFilter::default() };
        assert_eq!(opened.store.runs(&tenant, &filter, super::ALL).await.unwrap(), []);
    }
    close(opened).await;
}
