//! The tools of our server that move files, as any client of MCP uses them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::direct::Direct;

const PIECE: usize = 1 << 20;

fn upload(server: &mut Direct, path: &str, content: &[u8]) -> Value {
    let mut told = Value::Null;
    let pieces: Vec<&[u8]> =
        if content.is_empty() { vec![&[]] } else { content.chunks(PIECE).collect() };
    for (number, piece) in pieces.into_iter().enumerate() {
        let arguments =
            json!({"path": path, "content_base64": STANDARD.encode(piece), "append": number > 0});
        told = server.call("upload_file", &arguments)["structuredContent"].take();
    }
    told
}

fn download(server: &mut Direct, path: &str) -> Vec<u8> {
    let mut content = Vec::new();
    loop {
        let arguments = json!({"path": path, "offset": content.len(), "length": PIECE});
        let answer = server.call("download_file", &arguments);
        let resource = &answer["content"][0]["resource"];
        let piece = STANDARD.decode(resource["blob"].as_str().unwrap()).unwrap();
        let told = &answer["structuredContent"];
        assert_eq!(
            (&told["offset"], &told["length"]),
            (&json!(content.len()), &json!(piece.len()))
        );
        content.extend(piece);
        if told["eof"] == true {
            assert_eq!(told["size"], content.len());
            return content;
        }
    }
}

#[test]
fn files_come_back_byte_for_byte_under_odd_names() {
    let mut server = Direct::start(&[]);
    let all: Vec<u8> = (0..=255).collect();
    let names = [
        "a b.csv",
        "génération – ü.csv",
        "数据.csv",
        "e\u{301}.txt",
        "-rf",
        "x\"y' 100%+&#?.csv",
        "new\nline\t.txt",
        "sub/folder/🦀.bin",
        ".hidden",
        "...",
    ];
    for name in names {
        let told = upload(&mut server, name, &all);
        assert_eq!(told, json!({"path": format!("/files/{name}"), "size": 256}));
        assert_eq!(download(&mut server, &format!("/files/{name}")), all, "{name}");
    }
    upload(&mut server, "empty", b"");
    assert_eq!(download(&mut server, "empty"), b"");
    let listed = server.call("list_files", &json!({}))["structuredContent"].take();
    let mut paths: Vec<&str> = listed["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| file["path"].as_str().unwrap())
        .collect();
    let mut expected: Vec<String> = names.iter().map(|name| format!("/files/{name}")).collect();
    expected.push("/files/empty".into());
    expected.sort_unstable();
    paths.sort_unstable();
    assert_eq!(paths, expected);
    let seen = server.value("import os\nsorted(os.listdir('/files'))[:2]");
    assert_eq!(seen, "['-rf', '...']");
}

#[test]
fn twenty_megabytes_go_in_and_out_in_pieces() {
    let mut server = Direct::start(&[]);
    let content: Vec<u8> = (0..20_000_000_u32).map(|number| (number / 7) as u8).collect();
    let told = upload(&mut server, "big", &content);
    assert_eq!(told, json!({"path": "/files/big", "size": content.len()}));
    assert!(download(&mut server, "big") == content, "it is another one");
    let code = "import hashlib\nhashlib.sha256(open('/files/big', 'rb').read()).hexdigest()";
    let digest: String = {
        use sha2::Digest;
        sha2::Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect()
    };
    assert_eq!(server.value(code), format!("'{digest}'"));
}

#[test]
fn paths_outside_of_the_files_are_invalid_params() {
    let mut server = Direct::start(&[]);
    for path in [
        "",
        "/",
        "/etc/passwd",
        "../x",
        "/files/../etc/passwd",
        "a/../../x",
        "a\0b",
        "/filesystem",
        "/tmp/x",
    ] {
        for (tool, more) in [
            ("upload_file", json!({"text": "x"})),
            ("download_file", json!({})),
            ("delete_file", json!({})),
            ("list_files", json!({})),
        ] {
            let mut arguments = more;
            arguments["path"] = path.into();
            let answer = server.call(tool, &arguments);
            assert_eq!(answer["code"], -32602, "{tool} {path:?}: {answer}");
        }
    }
}

#[test]
fn a_file_that_cannot_be_had_is_an_error_of_the_tool() {
    let mut server = Direct::start(&["--files-bytes", "1000000"]);
    server.run("import os\nos.mkdir('/files/folder')");
    let text = |answer: Value| {
        assert_eq!(answer["isError"], true, "{answer}");
        answer["content"][0]["text"].as_str().unwrap().to_owned()
    };
    for (tool, arguments, why) in [
        ("download_file", json!({"path": "absent"}), "no such file or directory"),
        ("download_file", json!({"path": "folder"}), "is a directory"),
        ("delete_file", json!({"path": "absent"}), "no such file or directory"),
        ("upload_file", json!({"path": "folder", "text": "x"}), "is a directory"),
        ("upload_file", json!({"path": "big", "text": "x".repeat(1_000_001)}), "no space left"),
        ("list_files", json!({"path": "/files/absent"}), "no such file or directory"),
    ] {
        assert_eq!(text(server.call(tool, &arguments)), why, "{tool} {}", arguments["path"]);
    }
    let deleted = server.call("upload_file", &json!({"path": "x", "text": "ü"}));
    assert_eq!(deleted["structuredContent"], json!({"path": "/files/x", "size": 2}));
    assert_eq!(
        server.call("delete_file", &json!({"path": "x"}))["structuredContent"],
        json!({"path": "/files/x"})
    );
    assert_eq!(server.value("os.listdir('/files')"), "['folder']");
}

#[test]
fn what_is_shown_comes_once_more_as_a_picture() {
    let mut server = Direct::start(&[]);
    let code = "import base64\nclass Picture:\n  def _repr_png_(self): return base64.b64decode('iVBORw0KGgo=')\ndisplay(Picture())\n'value'";
    let answer = server.call("run_python_code", &json!({"python_code": code}));
    let image = json!({"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"});
    assert_eq!(answer["content"].as_array().unwrap()[1..], [image]);
}
