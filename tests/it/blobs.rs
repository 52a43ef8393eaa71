//! Files of runs in a bucket, whatever becomes of the bucket.

use std::process::Output;

use futures::StreamExt;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::bucket::{Bucket, KEY, Mode, NAME, SECRET, staged};
use crate::support::double::doubles_python;
use crate::support::scrape::Scrape;
use crate::support::server::{Server, command, open_folder};
use crate::support::{Caller, must_come, send};

const OFFICIAL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doubles/s3/official.py");
/// More than one part.
const LARGE: &str = "open('large', 'wb').write(bytes(range(256)) * 80_000)";
const LARGE_BYTES: usize = 256 * 80_000;

/// A run that makes a file, which must be good: the file's URL, and its content.
async fn made(caller: &Caller, content: &str) -> String {
    let code = format!("open('made', 'w').write({content:?})");
    let (status, execution) = caller.post("/v1/execute", json!({"code": code})).await;
    assert_eq!((status, &execution["status"]), (StatusCode::OK, &json!("success")), "{execution}");
    let url = execution["output_files"][0]["url"].as_str();
    url.unwrap_or_else(|| panic!("it is kept: {execution}")).to_owned()
}

async fn content(caller: &Caller, url: &str) -> (StatusCode, String) {
    let response = send(caller.request(Method::GET, url)).await;
    (response.status(), response.text().await.unwrap())
}

fn good(text: &str) -> (StatusCode, String) {
    (StatusCode::OK, text.to_owned())
}

fn count(log: &str, words: &str) -> usize {
    log.lines().filter(|line| line.contains(words)).count()
}

/// Waits until the service has logged it so often.
async fn logged(server: &Server, words: &str, times: usize) {
    must_come(async {
        while count(&server.log(), words) < times {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

const WAIT: &str = "blobs wait for the bucket";
const ALL_AGAIN: &str = "the bucket has all blobs again";

#[tokio::test]
async fn the_vendors_own_client_accepts_the_bucket_and_ours_too() {
    let bucket = Bucket::start();
    #[expect(clippy::disallowed_methods, reason = "the client is a program of its vendor")]
    let mut official = std::process::Command::new(doubles_python());
    let told = official.args([OFFICIAL, bucket.url(), NAME, KEY, SECRET]).output().unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    let told = check(&bucket, &[]);
    let text = String::from_utf8_lossy(&told.stdout);
    let line = format!("blobs: s3://{NAME}/pre/fix at {}", bucket.wire.url);
    assert!(told.status.success() && text.contains(&line), "{text}");
    assert_eq!(bucket.objects().await.len(), 0, "the probe is removed");
}

/// What `interpreterd check` says of a bucket.
fn check(bucket: &Bucket, more: &[(&str, &str)]) -> Output {
    let folder = open_folder();
    let mut command = command();
    command.arg("check").env("INTERPRETERD_DATA_DIR", folder.path().join("data"));
    for (name, value) in bucket.settings().iter().chain(more) {
        command.env(format!("INTERPRETERD_{name}"), value);
    }
    command.output().unwrap()
}

#[tokio::test]
async fn what_is_wrong_with_a_bucket_is_told_in_words() {
    let bucket = Bucket::start();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = format!("http://{}", free.local_addr().unwrap());
    drop(free);
    for (setting, words) in [
        (("BLOBS_SECRET_ACCESS_KEY", "wrong"), "refuses the key: SignatureDoesNotMatch"),
        (("BLOBS_ACCESS_KEY_ID", "AKIDOFNOBODY"), "refuses the key: InvalidAccessKeyId"),
        (("BLOBS_URL", "s3://no-such-bucket"), "there is no such bucket"),
        (("BLOBS_ENDPOINT", nobody.as_str()), "the bucket cannot be used now"),
        (("BLOBS_ACCESS_KEY_ID", ""), "one of blobs_access_key_id and"),
    ] {
        let told = check(&bucket, &[setting]);
        let text = [told.stdout, told.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
        assert!(text.contains(words), "{setting:?}: {text}");
        assert!(!text.contains(SECRET) && !text.contains("what was signed"), "{text}");
    }
}

#[tokio::test]
async fn files_and_long_details_of_runs_come_back_from_the_bucket() {
    let bucket = Bucket::start();
    let server = bucket.serve(&[]);
    let caller = server.caller();
    let code = format!("{LARGE}\nopen('none', 'w')\nprint('é' * 100_000)");
    let (_, execution) = caller.post("/v1/execute", json!({"code": code})).await;
    let files = execution["output_files"].as_array().unwrap();
    assert_eq!(files.len(), 2, "{execution}");
    assert_eq!(staged(&server.data_dir), Vec::<std::path::PathBuf>::new());
    let objects = bucket.objects().await;
    assert_eq!(objects.len(), 3, "two files and the detail: {objects:?}");
    assert_eq!(bucket.uploads().await, 0);
    for file in files {
        let kept = json!({"size": file["size_bytes"], "sha256": file["sha256"]});
        assert!(objects.values().any(|object| *object == kept), "{objects:?}");
    }
    let expected: Vec<u8> = (0..=255).cycle().take(LARGE_BYTES).collect();
    let url =
        |name: &str| format!("/v1/runs/{}/files/{name}", execution["run_id"].as_str().unwrap());
    let whole = send(caller.request(Method::GET, &url("large"))).await;
    assert!(whole.bytes().await.unwrap() == expected, "byte for byte");
    let request =
        caller.request(Method::GET, &url("large")).header("range", "bytes=9999999-10000010");
    let part = send(request).await;
    assert_eq!(part.status(), StatusCode::PARTIAL_CONTENT);
    assert_eq!(part.bytes().await.unwrap(), expected[9_999_999..=10_000_010]);
    assert_eq!(content(&caller, &url("none")).await, good(""));
    let path = format!("/v1/runs/{}", execution["run_id"].as_str().unwrap());
    let (_, run) = caller.get(&path).await;
    let printed = run["code_exec_results"][0]["execution"]["stdout"].as_str().unwrap();
    assert_eq!(printed, "é".repeat(100_000) + "\n");
    let log = server.log();
    assert_eq!((count(&log, WAIT), log.contains(SECRET)), (0, false));
}

#[tokio::test]
async fn a_bucket_that_refuses_holds_nothing_up_and_gets_all_later() {
    outage(Mode::Refuses).await;
}

#[tokio::test]
async fn a_bucket_that_hangs_holds_nothing_up_and_gets_all_later() {
    outage(Mode::Hangs).await;
}

#[tokio::test]
async fn a_bucket_whose_connections_break_holds_nothing_up_and_gets_all_later() {
    outage(Mode::Cuts(100)).await;
}

async fn outage(mode: Mode) {
    let bucket = Bucket::start();
    let server = bucket.serve(&[]);
    let caller = server.caller();
    let before = made(&caller, "before").await;
    bucket.wire.set(mode);
    let first = made(&caller, "first").await;
    logged(&server, WAIT, 1).await;
    let asked = std::time::Instant::now();
    let mut urls = vec![first];
    for number in 0..5 {
        urls.push(made(&caller, &format!("{number}")).await);
    }
    let (_, large) = caller.post("/v1/execute", json!({"code": LARGE})).await;
    assert!(asked.elapsed().as_secs() < 20, "nobody waits for the bucket");
    assert_eq!(staged(&server.data_dir).len(), 7);
    assert_eq!(Scrape::of(&caller).await.count("blobs_waiting"), 7);
    let asked = std::time::Instant::now();
    let (status, body) = content(&caller, &before).await;
    assert!(asked.elapsed().as_secs() < 20, "who reads is told soon");
    let problem: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (status.as_u16(), &problem["code"], &problem["retry_safe"]),
        (503, &json!("store_unavailable"), &json!(true)),
        "{body}"
    );
    assert_eq!(content(&caller, &urls[0]).await, good("first"), "served meanwhile");
    let (ready, _) = caller.get("/readyz").await;
    assert_eq!(ready, StatusCode::OK);
    bucket.wire.set(Mode::Passes);
    bucket.has_all_of(&server).await;
    logged(&server, ALL_AGAIN, 1).await;
    let objects = bucket.objects().await;
    assert_eq!((objects.len(), bucket.uploads().await), (8, 0), "{objects:?}");
    let hash = &large["output_files"][0]["sha256"];
    assert!(objects.values().any(|object| object["sha256"] == *hash));
    for (url, text) in urls.iter().zip(["first", "0", "1", "2", "3", "4"]) {
        assert_eq!(content(&caller, url).await, good(text));
    }
    let after = made(&caller, "after").await;
    assert_eq!(content(&caller, &after).await, good("after"));
    assert!(staged(&server.data_dir).is_empty(), "it is waited for again");
    assert_eq!(Scrape::of(&caller).await.count("blobs_waiting"), 0);
    assert_eq!(count(&server.log(), WAIT), 1, "said once");
}

#[tokio::test]
async fn a_wire_that_breaks_within_a_file_costs_no_file_and_leaves_no_half_one() {
    let bucket = Bucket::start();
    let server = bucket.serve(&[]);
    let caller = server.caller();
    bucket.wire.set(Mode::Cuts(4 << 20)); // within each of its parts
    let (status, execution) = caller.post("/v1/execute", json!({"code": LARGE})).await;
    assert_eq!(status, StatusCode::OK, "{execution}");
    let file = &execution["output_files"][0];
    logged(&server, WAIT, 1).await;
    assert_eq!((bucket.objects().await.len(), bucket.uploads().await), (0, 0), "nor parts of one");
    bucket.wire.set(Mode::Passes);
    bucket.has_all_of(&server).await;
    let kept = json!({"size": file["size_bytes"], "sha256": file["sha256"]});
    let objects: Vec<_> = bucket.objects().await.into_values().collect();
    assert_eq!((objects, bucket.uploads().await), (vec![kept], 0));
    bucket.wire.set(Mode::Cuts(1 << 20));
    let url = file["url"].as_str().unwrap();
    let broken = send(caller.request(Method::GET, url)).await;
    assert!(broken.bytes().await.is_err(), "what breaks off does not look whole");
    bucket.wire.set(Mode::Passes);
    let whole = send(caller.request(Method::GET, url)).await;
    assert_eq!(whole.bytes().await.unwrap().len(), LARGE_BYTES);
}

#[tokio::test]
async fn what_waits_when_the_service_is_killed_goes_up_after_its_restart() {
    let bucket = Bucket::start();
    let folder = open_folder();
    let data_dir = folder.path().join("data");
    let server = bucket.serve_in(&data_dir, &[]);
    bucket.wire.set(Mode::Refuses);
    let caller = server.caller();
    let urls = [made(&caller, "one").await, made(&caller, "two").await];
    server.signal(libc::SIGKILL);
    server.wait();
    std::fs::write(data_dir.join("staged/ab+half.9.partial"), "ha").unwrap();
    let server = bucket.serve_in(&data_dir, &[]);
    let caller = server.caller();
    let waiting = staged(&data_dir);
    assert_eq!(waiting.len(), 2, "the half one is gone: {waiting:?}");
    assert_eq!(content(&caller, &urls[1]).await, good("two"), "served from what waits");
    bucket.wire.set(Mode::Passes);
    bucket.has_all_of(&server).await;
    assert_eq!(bucket.objects().await.len(), 2);
    for (url, text) in urls.iter().zip(["one", "two"]) {
        assert_eq!(content(&caller, url).await, good(text));
    }
}

#[tokio::test]
async fn there_is_room_for_so_much_that_waits_and_a_run_goes_on_without_its_file() {
    let bucket = Bucket::start();
    let server = bucket.serve(&[("BLOBS_STAGED_BYTES", "40000")]);
    bucket.wire.set(Mode::Refuses);
    let caller = server.caller();
    let kept = made(&caller, "kept").await;
    made(&caller, "kept too").await;
    let code = "open('over', 'w').write('x'); print('done')";
    let (status, execution) = caller.post("/v1/execute", json!({"code": code})).await;
    assert_eq!(
        (status, &execution["stdout"], &execution["output_files"]),
        (StatusCode::OK, &json!("done\n"), &json!([]))
    );
    assert!(server.log().contains("blobs_full"), "{}", server.log());
    bucket.wire.set(Mode::Passes);
    bucket.has_all_of(&server).await;
    assert_eq!(content(&caller, &kept).await, good("kept"));
    made(&caller, "there is room again").await;
}

#[tokio::test]
async fn orphans_in_the_bucket_are_swept_once_they_are_old() {
    let bucket = Bucket::start();
    let folder = open_folder();
    let server = bucket.serve_in(&folder.path().join("data"), &[]);
    let url = made(&server.caller(), "kept").await;
    for blob in ["ab/orphan", "ff/orphan", "00/orphan"] {
        bucket.put(blob).await;
    }
    bucket.age(25 * 3600).await;
    bucket.put("ab/young").await;
    server.signal(libc::SIGTERM);
    server.wait();
    let server = bucket.serve_in(&folder.path().join("data"), &[]);
    must_come(async {
        while bucket.objects().await.keys().any(|name| name.ends_with("orphan")) {}
    })
    .await;
    let left: Vec<_> = bucket.objects().await.into_keys().collect();
    assert_eq!(left.len(), 2, "one in use and one young: {left:?}");
    assert!(left.contains(&"ab/young".to_owned()));
    assert_eq!(content(&server.caller(), &url).await, good("kept"));
}

#[tokio::test]
async fn what_is_forgotten_leaves_the_bucket_also_when_it_waits() {
    let bucket = Bucket::start();
    let server = bucket.serve(&[("RETENTION_SECONDS", "2")]);
    let caller = server.caller();
    made(&caller, "in the bucket").await;
    bucket.wire.set(Mode::Refuses);
    made(&caller, "waits").await;
    must_come(async {
        while !staged(&server.data_dir).is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    bucket.wire.set(Mode::Passes);
    logged(&server, ALL_AGAIN, 1).await;
    let objects = bucket.objects().await;
    assert!(objects.len() <= 1, "what waited never goes up: {objects:?}");
}

#[tokio::test]
async fn keys_follow_no_redirect() {
    let stolen = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let place = stolen.local_addr().unwrap();
    let redirecting = axum::Router::new().fallback(move |uri: axum::http::Uri| async move {
        // the one that is followed whatever was asked, without its body
        axum::response::Redirect::to(&format!("http://{place}{uri}"))
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, redirecting).await });
    let bucket = Bucket::start();
    let setting = [("BLOBS_ENDPOINT", endpoint.as_str())];
    let folder = open_folder();
    let mut command = tokio::process::Command::from(command());
    command.arg("check").env("INTERPRETERD_DATA_DIR", folder.path().join("data"));
    for (name, value) in bucket.settings().iter().chain(&setting) {
        command.env(format!("INTERPRETERD_{name}"), value);
    }
    let told = command.output().await.unwrap();
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(text.contains("303"), "{text}");
    stolen.set_nonblocking(true).unwrap();
    assert!(stolen.accept().is_err(), "nobody came there");
}

#[tokio::test]
async fn every_file_of_many_runs_at_once_is_kept_while_the_wire_comes_and_goes() {
    const RUNS: usize = 40;
    let bucket = Bucket::start();
    let server = bucket.serve(&[]);
    let caller = server.caller();
    let modes =
        [Mode::Refuses, Mode::Passes, Mode::Cuts(2000), Mode::Passes, Mode::Hangs, Mode::Passes];
    let mut urls = futures::stream::iter(0..RUNS)
        .map(|number| {
            let caller = &caller;
            async move { (number, made(caller, &format!("of run {number}")).await) }
        })
        .buffer_unordered(4);
    let mut made = Vec::new();
    while let Some(one) = urls.next().await {
        made.push(one);
        bucket.wire.set(modes[made.len() / 2 % modes.len()]);
    }
    bucket.wire.set(Mode::Passes);
    bucket.has_all_of(&server).await;
    assert_eq!((bucket.objects().await.len(), bucket.uploads().await), (RUNS, 0));
    for (number, url) in made {
        assert_eq!(content(&caller, &url).await, good(&format!("of run {number}")));
    }
}

#[tokio::test]
async fn a_bucket_behind_a_certificate_of_ones_own_is_reached_when_it_is_trusted() {
    let folder = open_folder();
    let names = ["127.0.0.1".to_owned(), "localhost".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let [certificate, key] = [&certificate, &key].map(|path| path.to_str().unwrap());
    let bucket = Bucket::start_with(&["--tls", certificate, key]);
    let endpoint = bucket.url().to_owned();
    assert!(endpoint.starts_with("https://"), "{endpoint}");
    let told = |more: &[(&str, &str)]| {
        let told = check(&bucket, &[&[("BLOBS_ENDPOINT", endpoint.as_str())], more].concat());
        String::from_utf8(told.stdout).unwrap()
    };
    let trusted = told(&[("BLOBS_CA_FILE", certificate)]);
    assert!(trusted.contains("ok       blobs: s3://"), "{trusted}");
    let untrusted = told(&[]);
    assert!(
        untrusted.contains("missing  blobs") && untrusted.contains("ertificate"),
        "{untrusted}"
    );
    let absent = told(&[("BLOBS_CA_FILE", "/no/such/file")]);
    assert!(absent.contains("cannot read certificates from /no/such/file"), "{absent}");
}
