//! Files in and out of a machine, and pictures.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::{COMMAND, furnished, in_machine};
use crate::support::agentcore::{self, AgentCore};
use crate::support::{Caller, send};

/// Bytes of all kinds, none of them text for long.
fn mixed(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251 + at / 65_521) as u8).collect()
}

async fn there_and_back(caller: &Caller, content: Vec<u8>) {
    let session = caller.session().await;
    let (status, entry) = session.put("sub/large.bin", content.clone()).await;
    assert!(status.is_success(), "{entry}");
    assert_eq!(entry["size_bytes"], content.len());
    let code = format!(
        "import os\ncontent = open('sub/large.bin', 'rb').read()\nlen(content) == {} and os.listdir('.')",
        content.len()
    );
    assert_eq!(session.text(&code).await, "['sub']");
    let back = session.download("sub/large.bin").await.bytes().await.unwrap();
    assert!(back == content, "{} bytes came back, {} were sent", back.len(), content.len());
    let made = session.exec("open('made.bin', 'wb').write(content[::-1])").await;
    assert_eq!(made["files"][0]["size_bytes"], content.len(), "{made}");
    let back = session.download("made.bin").await.bytes().await.unwrap();
    assert!(back.iter().eq(content.iter().rev()), "the file that a cell made");
}

#[tokio::test]
async fn a_file_of_20_mb_goes_both_ways_in_slices() {
    let (aws, server) = agentcore::shared();
    let caller = server.caller();
    there_and_back(&caller, mixed(20_000_000)).await;
    let calls = aws.requests("POST ").await;
    let longest = calls.iter().map(|call| {
        let content = call["arguments"]["content"].as_array().cloned().unwrap_or_default();
        content.iter().map(|block| block["blob"].as_str().unwrap_or_default().len()).sum::<usize>()
    });
    assert!(longest.max().unwrap() <= (8 << 20) / 3 * 4 + 4);
}

#[tokio::test]
async fn files_come_whole_where_reading_refuses_or_mangles() {
    for option in ["none", "text"] {
        let aws = AgentCore::start(&["--read-files", option]);
        let server = aws.serve(&[]);
        there_and_back(&server.caller(), b"a\r\nb\r\n".repeat(50_000)).await;
        there_and_back(&server.caller(), mixed(1_500_000)).await;
    }
}

#[tokio::test]
async fn a_part_of_a_large_file_is_all_that_is_fetched() {
    let (_, server) = agentcore::shared();
    let caller = server.caller();
    let session = caller.session().await;
    let content = mixed(9_000_000);
    session.put("large.bin", content.clone()).await;
    for (range, part) in [
        ("bytes=8999990-", &content[8_999_990..]),
        ("bytes=-5", &content[8_999_995..]),
        ("bytes=8388600-8388620", &content[8_388_600..=8_388_620]),
        ("bytes=100-8500000", &content[100..=8_500_000]),
    ] {
        let request = caller.request(Method::GET, &session.path("/files/large.bin"));
        let response = send(request.header("range", range)).await;
        assert_eq!(response.status(), StatusCode::PARTIAL_CONTENT);
        assert!(response.bytes().await.unwrap() == part, "{range}");
    }
}

#[tokio::test]
async fn no_absolute_path_and_no_link_leads_out_of_the_files_folder() {
    let (aws, server) = agentcore::shared();
    let caller = server.caller();
    let session = caller.session().await;
    session.exec("import os\nos.symlink('/etc', 'etc')\nos.symlink('/etc/passwd', 'passwd')\nos.mkfifo('pipe')").await;
    for name in ["etc/passwd", "passwd", "pipe"] {
        let status = session.download(name).await.status();
        assert_eq!(status, StatusCode::CONFLICT, "{name}");
        let (status, _) = session.put(name, "x").await;
        assert_eq!(status, StatusCode::CONFLICT, "{name}");
    }
    let calls = aws.requests("POST ").await;
    let paths = calls.iter().flat_map(|call| {
        let blocks = call["arguments"]["content"].as_array().cloned().unwrap_or_default();
        let written = blocks.into_iter().map(|block| block["path"].clone());
        let read = call["arguments"]["paths"].as_array().cloned().unwrap_or_default();
        written.chain(read).collect::<Vec<Value>>()
    });
    let paths: Vec<Value> = paths.collect();
    assert!(paths.iter().all(|path| path.as_str().unwrap().starts_with(".interpreterd/")));
}

#[tokio::test]
async fn a_write_that_fails_midway_leaves_nothing() {
    let (aws, server) = agentcore::shared();
    let caller = server.caller();
    let (session, id) = furnished(&caller).await;
    session.put("there.txt", "before").await;
    aws.fault(in_machine(&id, COMMAND, json!({"status": 500}))).await;
    let (status, told) = session.put("there.txt", "after").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{told}");
    assert_eq!(session.download("there.txt").await.text().await.unwrap(), "before");
    let fault = json!({"status": 500, "times": 1});
    aws.fault(in_machine(&id, "tools/invoke writeFiles$", fault)).await;
    let content = mixed(100_000);
    let (status, _) = session.put("there.txt", content.clone()).await;
    assert!(status.is_success(), "what was not put in place yet is sent again");
    assert!(session.download("there.txt").await.bytes().await.unwrap() == content);
    let code =
        "import os\n[name for name in os.listdir('../.interpreterd') if name.startswith('in-')]";
    assert_eq!(session.text(code).await, "[]", "nothing of ours is left");
}

#[tokio::test]
async fn figures_reach_the_caller_however_they_are_drawn() {
    let (_, server) = agentcore::shared();
    let caller = server.caller();
    for code in [
        "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()",
        "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nNone",
        "import matplotlib\nmatplotlib.use('Agg')\nimport matplotlib.pyplot as plt\nplt.bar([1], [2])\nplt.show()",
        "from matplotlib.figure import Figure\nfigure = Figure()\nfigure.subplots().plot([1, 2])\nfigure",
        "import pandas\npandas.DataFrame({'a': [1, 2]}).plot()\nNone",
    ] {
        let session = caller.session().await;
        let execution = session.exec(code).await;
        assert_eq!((&execution["status"], &execution["stderr"]), (&json!("success"), &json!("")));
        let outputs = execution["outputs"].as_array().unwrap();
        let pictures: Vec<&str> =
            outputs.iter().filter_map(|output| output["data"]["image/png"].as_str()).collect();
        assert_eq!(pictures.len(), 1, "{code}: {execution}");
        assert!(pictures[0].starts_with("iVBOR"));
        assert_eq!(session.exec("1").await["outputs"].as_array().unwrap().len(), 1);
    }
}
