//! Files of a session, both ways.

use base64::Engine;
use bytes::Bytes;
use futures::StreamExt;
use reqwest::{Method, StatusCode};
use serde_json::json;

use crate::support::problem;
use crate::support::server::{Server, caller};

#[tokio::test]
async fn a_csv_with_a_space_and_an_accent_goes_in_and_its_chart_comes_out_byte_identical() {
    let caller = caller();
    let session = caller.session().await;
    let name = "génération – ü.csv";
    let (status, entry) = session.put(name, "jahr,wert\n2024,1\n2025,3\n").await;
    assert_eq!(status, StatusCode::OK, "{entry}");
    assert_eq!(
        (&entry["path"], &entry["size_bytes"], &entry["mime"]),
        (&json!(name), &json!(24), &json!("text/csv"))
    );
    let code = format!(
        "import pandas as pd, matplotlib.pyplot as plt\ndf = pd.read_csv('{name}')\ndf.plot(x='jahr', y='wert')\nplt.savefig('chart 1.png'); plt.close()\n\
         import base64; base64.b64encode(open('chart 1.png', 'rb').read()).decode()"
    );
    let execution = session.exec(&code).await;
    assert_eq!(execution["files"][0]["path"], "chart 1.png", "{execution}");
    assert_eq!(
        (&execution["files"][0]["change"], &execution["files"][0]["mime"]),
        (&json!("created"), &json!("image/png"))
    );
    let inside = base64::engine::general_purpose::STANDARD
        .decode(execution["text"].as_str().unwrap().trim_matches('\''))
        .unwrap();
    let response = session.download("chart 1.png").await;
    let headers = response.headers().clone();
    assert_eq!(response.bytes().await.unwrap(), inside);
    assert_eq!(headers["content-type"], "image/png");
    assert_eq!(headers["content-disposition"], "inline; filename=\"chart 1.png\"");
    assert_eq!(headers["x-content-type-options"], "nosniff");
    assert_eq!(headers["content-security-policy"], "default-src 'none'; sandbox");
}

#[tokio::test]
async fn a_file_of_200_mb_goes_up_and_down_with_flat_memory() {
    const PIECE: usize = 1 << 20;
    const PIECES: usize = 200;
    let server = Server::start(&[("LOCAL_MEMORY_BYTES", "1000000000")]);
    let caller = server.caller();
    let session = caller.session().await;
    session.put("small.bin", vec![1; PIECE]).await;
    let before = server.peak_bytes();
    let piece = |number: usize| Bytes::from(vec![number as u8; PIECE]);
    let body = futures::stream::iter(
        (0..PIECES).map(move |number| Ok::<_, std::io::Error>(piece(number))),
    );
    let (status, entry) = session.put("big.bin", reqwest::Body::wrap_stream(body)).await;
    assert_eq!((status, &entry["size_bytes"]), (StatusCode::OK, &json!(PIECE * PIECES)), "{entry}");
    let check = "import os\nok = True\nwith open('big.bin', 'rb') as f:\n    for i in range(200): ok &= f.read(1 << 20) == bytes([i]) * (1 << 20)\nos.path.getsize('big.bin'), ok";
    assert_eq!(session.text(check).await, format!("({}, True)", PIECE * PIECES));
    let mut download = session.download("big.bin").await.bytes_stream();
    let mut received = 0;
    while let Some(bytes) = download.next().await {
        for byte in bytes.unwrap() {
            assert_eq!(byte, (received / PIECE) as u8);
            received += 1;
        }
    }
    assert_eq!(received, PIECE * PIECES);
    let grown = server.peak_bytes() - before;
    assert!(grown < 32 << 20, "the service grew by {grown} bytes");
}

#[tokio::test]
async fn names_in_any_script_are_stored_and_found_by_the_same_name() {
    let caller = caller();
    let session = caller.session().await;
    let long = "x".repeat(255);
    for name in [
        "a b.csv",
        "数据.csv",
        "e\u{301}.txt",
        "-rf",
        "con.txt",
        "x\"y.csv",
        "sub/ü/x.png",
        "50%.txt",
        &long,
    ] {
        let (status, entry) = session.put(name, name.to_owned()).await;
        assert_eq!((status, &entry["path"]), (StatusCode::OK, &json!(name)), "{entry}");
        assert_eq!(session.download(name).await.text().await.unwrap(), name);
    }
    assert_eq!(session.text("open('数据.csv').read()").await, "'数据.csv'");
}

#[tokio::test]
async fn no_spelling_of_a_path_leads_outside() {
    let caller = caller();
    let session = caller.session().await;
    let host = caller.base.trim_start_matches("http://").to_owned();
    for path in [
        "../../etc/x",
        "/etc/x",
        "a/../../b",
        "..%2f..%2fx",
        "%2e%2e/x",
        "%2e%2e%2fx",
        "C:\\x",
        "C:%5Cx",
        "..\\x",
        "..%5cx",
        "a//b",
        "./a",
        "%00",
        "a%00b",
    ] {
        for method in ["PUT", "GET"] {
            // by hand: clients tidy paths before they send them
            let path = session.path(&format!("/files/{path}"));
            let request = format!(
                "{method} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: 1\r\nconnection: close\r\n\r\nx"
            );
            let answer = raw(&host, &request).await;
            assert!(answer.starts_with("HTTP/1.1 400"), "{method} {path}: {answer}");
            assert!(answer.contains("application/problem+json"), "{answer}");
        }
    }
    let (status, problem) = session.put(&"x".repeat(256), "x").await;
    assert_eq!((status, &problem["code"]), (StatusCode::BAD_REQUEST, &json!("malformed_path")));
    assert_eq!(session.text("import os; os.listdir('.')").await, "[]");
}

/// One request as written, and what came back.
async fn raw(host: &str, request: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut connection = tokio::net::TcpStream::connect(host).await.unwrap();
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn links_made_inside_lead_nowhere() {
    let caller = caller();
    let session = caller.session().await;
    session.exec("import os\nos.symlink('/etc/passwd', 'abs'); os.symlink('../../../etc', 'up'); os.symlink('/proc/self/root', 'root'); os.mkfifo('pipe')").await;
    for path in ["abs", "up/passwd", "root/etc/passwd", "pipe"] {
        let response = session.download(path).await;
        assert_eq!(response.status(), StatusCode::CONFLICT, "{path}");
    }
    assert_eq!(session.put("up/x", "x").await.0, StatusCode::CONFLICT);
}

#[tokio::test]
async fn a_file_that_is_missing_too_large_or_has_no_room_is_a_problem_and_loses_nothing() {
    let server = Server::start(&[("FILE_BYTES", "3000000")]);
    let caller = server.caller();
    let session = caller.session_with(json!({"limits": {"disk_bytes": 2 << 20}})).await;
    session.put("a.bin", "kept").await;
    let large = futures::stream::iter(
        (0..4).map(|_| Ok::<_, std::io::Error>(Bytes::from(vec![0; 1_000_000]))),
    );
    let request = caller.request(Method::PUT, &session.path("/files/a.bin"));
    let told = request.header("content-length", "4000000").body(vec![0; 4_000_000]);
    assert_eq!(problem(&crate::support::answer(told).await), (413, "file_too_large".into()));
    let streamed = session.put("a.bin", reqwest::Body::wrap_stream(large)).await;
    assert_eq!(streamed.0, StatusCode::PAYLOAD_TOO_LARGE);
    let full = session.put("a.bin", vec![0; 2_500_000]).await;
    assert_eq!(problem(&full), (413, "sandbox_full".into()));
    assert_eq!(session.download("a.bin").await.text().await.unwrap(), "kept");
    assert_eq!(session.text("import os; os.listdir('.')").await, "['a.bin']");
    let missing = caller.get(&session.path("/files/missing")).await;
    assert_eq!(problem(&missing), (404, "file_not_found".into()));
}

#[tokio::test]
async fn files_go_in_and_out_while_a_cell_runs() {
    let caller = caller();
    let session = caller.session().await;
    let waiting = session.exec("import os, time\nopen('ready', 'w').write('1')\nwhile not os.path.exists('go'): time.sleep(0.01)\nopen('go').read()");
    let sending = async {
        while session.download("ready").await.status() != StatusCode::OK {
            tokio::task::yield_now().await;
        }
        session.put("go", "now").await
    };
    let (execution, (status, _)) = tokio::join!(waiting, sending);
    assert_eq!((status, &execution["text"]), (StatusCode::OK, &json!("'now'")));
    let paths: Vec<_> =
        execution["files"].as_array().unwrap().iter().map(|file| &file["path"]).collect();
    assert_eq!(paths, ["ready"], "what a caller put in is no change of the cell");
}

#[tokio::test]
async fn an_upload_that_breaks_off_leaves_what_was_there() {
    let caller = caller();
    let session = caller.session().await;
    session.put("a.txt", "whole").await;
    let host = caller.base.trim_start_matches("http://").to_owned();
    {
        use tokio::io::AsyncWriteExt;
        let mut connection = tokio::net::TcpStream::connect(&host).await.unwrap();
        let head = format!(
            "PUT {} HTTP/1.1\r\nhost: {host}\r\ncontent-length: 100\r\n\r\nhalf",
            session.path("/files/a.txt")
        );
        connection.write_all(head.as_bytes()).await.unwrap();
        connection.shutdown().await.unwrap();
        let mut rest = Vec::new();
        let _ = tokio::io::AsyncReadExt::read_to_end(&mut connection, &mut rest).await;
    }
    assert_eq!(session.download("a.txt").await.text().await.unwrap(), "whole");
    assert_eq!(session.text("import os; os.listdir('.')").await, "['a.txt']");
}

#[tokio::test]
async fn changed_files_are_told_with_what_happened_to_them() {
    let caller = caller();
    let session = caller.session().await;
    session.put("in.csv", "a\n1\n").await;
    let code = "import os\nos.makedirs('sub'); open('sub/new.txt', 'w').write('123')\nopen('in.csv', 'a').write('2\\n')";
    let execution = session.exec(code).await;
    assert_eq!(
        execution["files"],
        json!([
            {"path": "in.csv", "size_bytes": 6, "mime": "text/csv", "change": "modified"},
            {"path": "sub/new.txt", "size_bytes": 3, "mime": "text/plain", "change": "created"},
        ])
    );
    assert_eq!(session.exec("1").await["files"], json!([]));
    let failed = session.exec("open('after.txt', 'w').write('x'); 1/0").await;
    assert_eq!(failed["files"][0]["path"], "after.txt");
}

#[tokio::test]
async fn files_are_listed_with_their_sizes_and_the_room_for_them() {
    let caller = caller();
    let session = caller.session().await;
    session.put("b.txt", "12345").await;
    session.put("a/x.csv", "1").await;
    session.exec("import os; os.makedirs('empty'); os.symlink('b.txt', 'link')").await;
    let (status, list) = caller.get(&session.path("/files")).await;
    assert_eq!(status, StatusCode::OK);
    let files: Vec<_> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| (file["path"].as_str().unwrap(), file["size_bytes"].as_u64().unwrap()))
        .collect();
    assert_eq!(files, [("a/x.csv", 1), ("b.txt", 5)]);
    assert_eq!((&list["used_bytes"], &list["quota_bytes"]), (&json!(6), &json!(256 << 20)));
}

#[tokio::test]
async fn a_file_of_a_year_that_cannot_be_told_is_listed_like_any_other() {
    let caller = caller();
    let session = caller.session().await;
    session.exec("import os\nopen('old', 'w').close()\nos.utime('old', (-1e11, -1e11))").await;
    let (status, list) = caller.get(&format!("/v1/sessions/{}/files", session.id)).await;
    assert_eq!(status, 200, "{list}");
    assert_eq!(list["data"][0]["modified_at"], "1970-01-01T00:00:00Z");
}

#[tokio::test]
async fn several_files_come_as_one_form_and_none_is_written_when_one_is_bad() {
    let caller = caller();
    let session = caller.session().await;
    let part = |name: &'static str, content: &'static [u8]| {
        reqwest::multipart::Part::bytes(content).file_name(name)
    };
    let form = reqwest::multipart::Form::new()
        .part("file", part("a ü.txt", b"one"))
        .part("file", part("sub/b.bin", &[0, 255]));
    let request = caller.request(Method::POST, &session.path("/files")).multipart(form);
    let (status, entries) = crate::support::answer(request).await;
    assert_eq!((status, entries.as_array().unwrap().len()), (StatusCode::OK, 2), "{entries}");
    assert_eq!(session.download("sub/b.bin").await.bytes().await.unwrap(), vec![0, 255]);
    let form = reqwest::multipart::Form::new()
        .part("file", part("good", b"x"))
        .part("file", part("../bad", b"x"));
    let bad = crate::support::answer(
        caller.request(Method::POST, &session.path("/files")).multipart(form),
    )
    .await;
    assert_eq!(problem(&bad), (400, "malformed_path".into()));
    assert_eq!(session.download("good").await.status(), StatusCode::NOT_FOUND);
    let json = caller.post(&session.path("/files"), json!({})).await;
    assert_eq!(problem(&json), (415, "unsupported_media_type".into()));
    let form = reqwest::multipart::Form::new().text("note", "x");
    let nameless = crate::support::answer(
        caller.request(Method::POST, &session.path("/files")).multipart(form),
    )
    .await;
    assert_eq!(problem(&nameless), (400, "malformed_multipart".into()));
}

#[tokio::test]
async fn a_part_of_a_file_is_given_and_one_that_is_not_there_is_a_problem() {
    let caller = caller();
    let session = caller.session().await;
    session.put("d.txt", "0123456789").await;
    let (_, execution) =
        caller.post("/v1/execute", json!({"code": "open('d.txt', 'w').write('0123456789')"})).await;
    let kept = execution["output_files"][0]["url"].as_str().unwrap().to_owned();
    for path in [session.path("/files/d.txt"), kept] {
        for (range, status, content, told) in [
            ("bytes=2-4", 206, "234", "bytes 2-4/10"),
            ("bytes=7-", 206, "789", "bytes 7-9/10"),
            ("bytes=-2", 206, "89", "bytes 8-9/10"),
            ("bytes=5-99", 206, "56789", "bytes 5-9/10"),
            ("bytes=0-1,4-5", 200, "0123456789", ""),
        ] {
            let response =
                crate::support::send(caller.request(Method::GET, &path).header("range", range))
                    .await;
            assert_eq!(response.status(), status, "{path} {range}");
            let range_told = response
                .headers()
                .get("content-range")
                .map_or("", |value| value.to_str().unwrap())
                .to_owned();
            assert_eq!(
                (range_told.as_str(), response.headers()["content-length"].to_str().unwrap()),
                (told, content.len().to_string().as_str())
            );
            assert_eq!(response.text().await.unwrap(), content);
        }
        let response =
            crate::support::send(caller.request(Method::GET, &path).header("range", "bytes=10-"))
                .await;
        assert_eq!(
            (response.status().as_u16(), response.headers()["content-range"].to_str().unwrap()),
            (416, "bytes */10")
        );
    }
}

#[tokio::test]
async fn conditions_hold_for_reads_writes_and_removals() {
    let caller = caller();
    let session = caller.session().await;
    let path = session.path("/files/c.txt");
    let send = |method: Method, header: &'static str, value: String| {
        let request = caller.request(method, &path).header(header, value).body("new");
        async move { crate::support::send(request).await }
    };
    assert_eq!(send(Method::PUT, "if-match", "*".to_owned()).await.status(), 412);
    assert_eq!(send(Method::PUT, "if-none-match", "*".to_owned()).await.status(), 200);
    assert_eq!(send(Method::PUT, "if-none-match", "*".to_owned()).await.status(), 412);
    let head = crate::support::send(caller.request(Method::HEAD, &path)).await;
    let etag = head.headers()["etag"].to_str().unwrap().to_owned();
    assert_eq!(
        (
            head.status().as_u16(),
            head.headers()["content-length"].to_str().unwrap(),
            &head.headers()["content-type"]
        ),
        (200, "3", &"text/plain".parse().unwrap())
    );
    assert_eq!(head.bytes().await.unwrap(), "");
    assert_eq!(send(Method::GET, "if-none-match", etag.clone()).await.status(), 304);
    assert_eq!(send(Method::GET, "if-none-match", "\"x\"".to_owned()).await.status(), 200);
    session.exec("open('c.txt', 'w').write('abc')").await;
    assert_eq!(
        send(Method::GET, "if-none-match", etag.clone()).await.status(),
        200,
        "same size, other content"
    );
    assert_eq!(send(Method::GET, "if-match", etag.clone()).await.status(), 412);
    assert_eq!(send(Method::PUT, "if-match", etag.clone()).await.status(), 412);
    assert_eq!(send(Method::DELETE, "if-match", etag).await.status(), 412);
    assert_eq!(session.download("c.txt").await.text().await.unwrap(), "abc");
    assert_eq!(caller.delete(&path).await, 204);
    assert_eq!(caller.delete(&path).await, 404);
    assert_eq!(session.text("import os; os.listdir('.')").await, "[]");
}

#[tokio::test]
async fn b38_of_two_writers_who_expect_the_same_state_one_wins() {
    let caller = caller();
    let session = caller.session().await;
    session.put("n", "0").await;
    let etag = session.download("n").await.headers()["etag"].to_str().unwrap().to_owned();
    let write = |number: usize| {
        let request =
            caller.request(Method::PUT, &session.path("/files/n")).header("if-match", etag.clone());
        async move { crate::support::send(request.body(number.to_string())).await.status().as_u16() }
    };
    let mut statuses = futures::future::join_all((0..10).map(write)).await;
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 412, 412, 412, 412, 412, 412, 412, 412, 412]);
}
