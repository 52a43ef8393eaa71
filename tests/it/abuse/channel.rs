//! Hostile code speaks, listens and is silent on the kernel's own channel to the service.

use serde_json::json;

use super::Expected::{Dies, Fails, Shows};
use super::{Scene, short};
use crate::support::server::{Server, caller};

cell!(
    it_holds_its_own_descriptors_and_no_others,
    r#"
kinds = {}
for descriptor in os.listdir("/proc/self/fd"):
    kind = attempt(os.readlink, "/proc/self/fd/" + descriptor).partition(":")[0]
    if kind != "ENOENT": kinds.setdefault(kind, []).append(int(descriptor))
{kind: sorted(which) for kind, which in sorted(kinds.items())}
"#,
    Shows("{'/dev/null': [0], 'pipe': [1, 2, 3, 4, 951], 'socket': [950]}"),
    restricted: Fails("PermissionError")
);
cell!(
    a_program_that_it_starts_has_three_descriptors,
    r#"
command = "ls /proc/self/fd | wc -w"
subprocess.run(command, shell=True, close_fds=False, capture_output=True).stdout
"#,
    Shows(r"b'4\n'"),
    restricted: Shows("b'0\\n'")
);

cell!(garbage_ends_it, r#"os.write(950, b"\xff" * 100); time.sleep(5)"#, Dies { exit_code: 137 });
cell!(
    a_frame_that_claims_two_gigabytes_ends_it,
    r#"os.write(950, struct.pack("<I", 0x7fffffff)); time.sleep(5)"#,
    Dies { exit_code: 137 }
);
cell!(an_empty_frame_ends_it, r#"frame(""); time.sleep(5)"#, Dies { exit_code: 137 });
cell!(json_nested_deep_ends_it, r#"frame("[" * 200_000); time.sleep(5)"#, Dies { exit_code: 137 });
cell!(
    json_that_would_fill_memory_ends_it,
    r#"frame('{"t":"result","data":{"a":[' + "0," * 10_000_000 + "0]}}"); time.sleep(5)"#,
    Dies { exit_code: 137 }
);
cell!(
    a_number_that_fits_nowhere_ends_it,
    r#"frame('{"t":"result","data":{"a":1e999}}'); time.sleep(5)"#,
    Dies { exit_code: 137 }
);
cell!(
    a_frame_of_the_wrong_shape_ends_it,
    r#"frame('{"t":"display","id":5,"data":[]}'); time.sleep(5)"#,
    Dies { exit_code: 137 }
);
cell!(
    half_a_frame_ends_it_when_the_next_one_comes,
    r#"os.write(950, b"\x10\x00\x00\x00ab")"#,
    Dies { exit_code: 137 }
);
cell!(
    the_end_of_another_cell_ends_it,
    r#"frame('{"t":"done","id":"another","status":"ok"}'); time.sleep(5)"#,
    Dies { exit_code: 137 }
);
cell!(
    a_flood_of_frames_ends_it,
    r#"
body = b'{"t":"x"}'
one = struct.pack("<I", len(body)) + body
channel = socket.socket(fileno=os.dup(950))
for _ in range(41): channel.sendall(one * 1000)
time.sleep(5)
"#,
    Dies { exit_code: 137 }
);
cell!(
    a_flood_of_bytes_in_frames_ends_it,
    r#"
body = b'{"t":"x","pad":"' + b"x" * (30 << 20) + b'"}'
channel = socket.socket(fileno=os.dup(950))
for _ in range(10): channel.sendall(struct.pack("<I", len(body)) + body)
time.sleep(5)
"#,
    Dies { exit_code: 137 }
);

cell!(
    frames_of_no_meaning_are_passed_over,
    r#"
for body in ('{"t":"hello"}', '{"t":"new in version 9","x":{}}', '{"t":"clear"}', '{"t":"dropped"}',
             '{"t":"display","id":"old","data":{"text/plain":"old"}}', '{"t":"error","id":null}'):
    frame(body)
"passed"
"#,
    Shows("'passed'")
);
cell!(
    a_forged_value_is_bounded_like_any_other,
    r#"
import json
for _ in range(3):
    frame(json.dumps({"t": "result", "id": cell_id(), "data": {"text/plain": "forged"}, "n": 1}))
"#,
    Shows("forged")
);

cell!(a_channel_that_is_closed_ends_it, "os.close(950)", Dies { exit_code: 0 });
cell!(
    a_channel_that_is_closed_in_a_long_cell_ends_it_at_once,
    "os.close(950); time.sleep(60)",
    Dies { exit_code: 137 }
);
cell!(
    a_channel_that_is_shut_for_writing_ends_it,
    "socket.socket(fileno=950).shutdown(socket.SHUT_WR); time.sleep(60)",
    Dies { exit_code: 137 }
);
cell!(
    a_channel_replaced_by_another_ends_it,
    "one, two = socket.socketpair(); os.dup2(one.fileno(), 950); time.sleep(60)",
    Dies { exit_code: 137 }
);
cell!(
    output_that_is_sent_into_the_channel_ends_it,
    "os.dup2(950, 1); print('output'); time.sleep(60)",
    Dies { exit_code: 137 }
);
cell!(
    descriptors_sent_over_the_channel_are_dropped,
    r#"
channel = socket.socket(fileno=os.dup(950))
body = b'{"t":"x"}'
for _ in range(8): socket.send_fds(channel, [struct.pack("<I", len(body)) + body], [0] * 100)
"sent"
"#,
    Shows("'sent'")
);
cell!(
    a_byte_out_of_band_is_refused,
    r#"
channel = socket.socket(fileno=os.dup(950))
attempt(channel.send, b"x", socket.MSG_OOB)
"#,
    Shows("'EPERM'")
);
cell!(
    a_child_that_keeps_the_channel_does_not_keep_the_cell,
    "
if libc.fork() == 0:  # behind Python's back: its hook closes nothing
    os.setsid()
    signal.pause()
os._exit(5)
",
    Dies { exit_code: 5 }
);
cell!(
    a_child_that_speaks_for_the_session_is_heard_like_it,
    r#"
pid = libc.fork()
if pid == 0:
    frame("garbage")
    os._exit(0)
time.sleep(5)
"#,
    Dies { exit_code: 137 }
);

cell!(
    a_pipe_as_large_as_can_be_is_read_to_its_end,
    r#"
F_SETPIPE_SZ = 1031
attempt(fcntl.fcntl, 1, F_SETPIPE_SZ, 1 << 20)
for _ in range(40): os.write(1, b" " * (1 << 20))
os.write(1, b"end")
None
"#,
    Shows("[... 40894467 bytes not kept ...] end")
);
cell!(
    the_pipe_of_late_output_takes_all_that_comes,
    r#"sum(os.write(951, b"x" * 65536) for _ in range(200))"#,
    Shows("13107200")
);
cell!(the_pipe_of_late_output_is_not_needed, "os.close(951)", Shows(""));
cell!(copies_of_its_pipes_that_are_closed_end_it, "os.closerange(3, 900)", Dies { exit_code: 97 });
cell!(
    it_reads_back_its_own_output_at_most,
    r#"
reader = os.open("/proc/self/fd/1", os.O_RDONLY | os.O_NONBLOCK)
attempt(os.read, reader, 1000) in (b"", "EAGAIN")
"#,
    Shows("True")
);
cell!(
    pipes_in_the_mode_of_packets_are_read_like_others,
    r#"
fcntl.fcntl(1, fcntl.F_SETFL, os.O_WRONLY | os.O_DIRECT)
for _ in range(3): os.write(1, b"packet ")
"#,
    Shows("packet packet packet")
);

#[tokio::test]
async fn a_forged_end_of_its_own_cell_is_believed_and_harms_that_session_alone() {
    let caller = caller();
    let scene = Scene::open(&caller).await;
    let code = r#"
import json
frame(json.dumps({"t": "done", "id": cell_id(), "status": "error", "exit_code": 123456, "n": 1}))
time.sleep(0.2)
"#;
    let execution = scene.attack(code).await;
    let seen = (&execution["status"], &execution["exit_code"], &execution["state_lost"]);
    assert_eq!(seen, (&json!("error"), &json!(1), &json!(false)), "{}", short(&execution));
    // the true end comes while the next cell runs, or before: it is that of another cell
    let next = scene.attack("time.sleep(1)").await;
    let seen = (&next["failure"]["kind"], &next["exit_code"], &next["state_lost"]);
    assert_eq!(seen, (&json!("killed"), &json!(137), &json!(true)), "{}", short(&next));
    scene.close().await;
}

#[tokio::test]
async fn garbage_on_all_three_pipes_while_no_cell_runs_harms_nobody() {
    let caller = caller();
    let scene = Scene::open(&caller).await;
    let code = "
def flood(descriptor):
    end = time.monotonic() + 0.3
    fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_WRONLY | os.O_NONBLOCK)
    while time.monotonic() < end: attempt(os.write, descriptor, os.urandom(4096))
    fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_WRONLY)
floods = [threading.Thread(target=flood, args=[descriptor]) for descriptor in (1, 2, 951)]
for thread in floods: thread.start()
";
    scene.attack(code).await;
    let execution = scene.attack("for thread in floods: thread.join()\n1 + 1").await;
    let seen = (&execution["status"], &execution["outputs"][0]["data"]["text/plain"]);
    assert_eq!(seen, (&json!("success"), &json!("2")), "{}", short(&execution));
    scene.close().await;
}

#[tokio::test]
async fn random_bytes_on_every_descriptor_leave_the_service_unmoved() {
    let code = r"
import random
generator, end = random.Random(SEED), time.monotonic() + 0.5
for descriptor in range(1024): attempt(os.set_blocking, descriptor, False)
while time.monotonic() < end:
    for descriptor in (*range(16), 950, 951):
        attempt(os.write, descriptor, generator.randbytes(generator.randrange(1, 9000)))
";
    for settings in [&[][..], &[("LOCAL_LEVELS", "restricted")]] {
        let server = Server::start(settings);
        let caller = server.caller();
        let scene = Scene::open(&caller).await;
        let (started, before) = (server.pid(), server.peak_bytes());
        for seed in 0..10 {
            let session = caller.session().await;
            session.exec("import os, time\ndef attempt(f, *a):\n    try: f(*a)\n    except OSError: pass").await;
            let execution = session.exec(&code.replace("SEED", &seed.to_string())).await;
            assert_ne!(execution["status"], "success", "seed {seed}: {}", short(&execution));
            assert_eq!(execution["state_lost"], true, "seed {seed}: {}", short(&execution));
            assert_eq!(session.text("1 + 1").await, "2", "seed {seed}");
        }
        assert_eq!(server.pid(), started);
        assert!(server.peak_bytes() < before + (64 << 20), "the service has grown");
        scene.close().await;
    }
}
