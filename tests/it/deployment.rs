//! What the image, its compose file and its system call profile promise, read without an engine.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

const PROFILE: &str = include_str!("../../deploy/seccomp.json");
const COMPOSE: &str = include_str!("../../docker-compose.yml");
const DOCKERFILE: &str = include_str!("../../Dockerfile");
const DOCKERIGNORE: &str = include_str!("../../.dockerignore");
const ENV_EXAMPLE: &str = include_str!("../../.env.example");
const SESSIONS_FILTERS: &str = include_str!("../../src/sandbox/local/seccomp.rs");
/// What makes rooms and moves into them.
const ROOMS: [&str; 6] = [
    include_str!("../../src/sandbox/local/root.rs"),
    include_str!("../../src/sandbox/local/room.rs"),
    include_str!("../../src/sandbox/local/slots.rs"),
    include_str!("../../src/sandbox/local/sys.rs"),
    include_str!("../../src/sandbox/local/warden.rs"),
    include_str!("../../src/sandbox/local/workshop.rs"),
];
/// Calls of namespaces and mounts, by the names that rustix gives them.
const ROOM_CALLS: [(&str, &str); 13] = [
    ("mount::mount_bind_recursive", "mount"),
    ("mount::mount_bind", "mount"),
    ("mount::mount_change", "mount"),
    ("mount::mount_remount", "mount"),
    ("mount::mount", "mount"),
    ("mount::unmount", "umount2"),
    ("mount::open_tree", "open_tree"),
    ("mount::move_mount", "move_mount"),
    ("thread::unshare_unsafe", "unshare"),
    ("thread::move_into_link_name_space", "setns"),
    ("process::pivot_root", "pivot_root"),
    ("process::chroot", "chroot"),
    ("system::sethostname", "sethostname"),
];
/// What rules over the host, looks into other processes, or has been a way into kernels, and nothing here needs.
const FORBIDDEN: &str = "acct add_key adjtimex bpf chroot clock_adjtime clock_settime clone3 delete_module \
    fanotify_init finit_module fsconfig fsmount fsopen fspick init_module io_uring_enter io_uring_register \
    io_uring_setup ioperm iopl kcmp kexec_file_load kexec_load keyctl lookup_dcookie migrate_pages modify_ldt \
    move_mount move_pages name_to_handle_at nfsservctl open_by_handle_at perf_event_open process_madvise \
    process_vm_readv process_vm_writev ptrace quotactl quotactl_fd reboot request_key setdomainname settimeofday \
    splice stime swapoff swapon syslog tee uselib userfaultfd vhangup vm86 vmsplice";

/// The rules of the profile that allow, by the call's name.
fn allowed() -> BTreeMap<String, Vec<Value>> {
    let profile: Value = serde_json::from_str(PROFILE).unwrap();
    let mut allowed: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for rule in profile["syscalls"].as_array().unwrap() {
        if rule["action"] == "SCMP_ACT_ALLOW" {
            for name in rule["names"].as_array().unwrap() {
                allowed.entry(name.as_str().unwrap().to_owned()).or_default().push(rule.clone());
            }
        }
    }
    allowed
}

/// The names behind `SYS_` in a part of a source file.
fn calls_in(source: &str) -> BTreeSet<String> {
    let end = |rest: &str| {
        rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len())
    };
    source.split("SYS_").skip(1).map(|rest| rest[..end(rest)].to_owned()).collect()
}

/// A top-level entry below `services:`, by its indentation.
fn service(name: &str) -> &'static str {
    let start = COMPOSE.find(&format!("\n  {name}:\n")).expect("the service is in the file") + 1;
    let rest = &COMPOSE[start..];
    let next = rest.match_indices('\n').skip(1).find(|(at, _)| {
        let line = rest[at + 1..].lines().next().unwrap_or_default();
        line.starts_with(|c: char| c.is_ascii_alphabetic())
            || (line.starts_with("  ") && line[2..].starts_with(|c: char| c.is_ascii_alphabetic()))
    });
    &rest[..next.map_or(rest.len(), |(at, _)| at)]
}

/// What stands behind a key of a service, comments left out.
fn value<'a>(service: &'a str, key: &str) -> Option<&'a str> {
    let line = service.lines().map(str::trim).find(|line| line.starts_with(&format!("{key}:")))?;
    Some(line[key.len() + 1..].trim())
}

/// Variables that the compose file takes from its environment, `$$` left out.
fn interpolated() -> BTreeSet<&'static str> {
    let until = |rest: &'static str| &rest[..rest.find([':', '}', '-', '?']).unwrap()];
    COMPOSE.split("${").skip(1).map(until).collect()
}

#[test]
fn the_profile_is_an_allow_list_without_what_rules_over_the_host() {
    let profile: Value = serde_json::from_str(PROFILE).unwrap();
    assert_eq!(
        (&profile["defaultAction"], &profile["defaultErrnoRet"]),
        (&"SCMP_ACT_ERRNO".into(), &1.into())
    );
    assert_eq!(
        profile["architectures"],
        serde_json::json!(["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"])
    );
    for rule in profile["syscalls"].as_array().unwrap() {
        assert!(rule["comment"].as_str().is_some_and(|why| !why.is_empty()), "{rule}");
        assert!(["SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO"].contains(&rule["action"].as_str().unwrap()));
    }
    let allowed = allowed();
    let wrong: Vec<_> = FORBIDDEN.split_whitespace().filter(|c| allowed.contains_key(*c)).collect();
    assert_eq!(wrong, Vec::<&str>::new());
    for (name, rules) in &allowed {
        let conditions = rules.iter().filter(|rule| rule.get("args").is_some()).count();
        assert!(
            conditions == rules.len() || rules.len() == 1,
            "{name} is allowed without conditions too"
        );
    }
    for name in ["socket", "personality"] {
        assert!(allowed[name].iter().all(|rule| rule.get("args").is_some()), "{name}");
    }
}

#[test]
fn the_profile_allows_all_that_the_filters_of_sessions_allow() {
    let list = &SESSIONS_FILTERS[SESSIONS_FILTERS.find("fn by_argument").unwrap()
        ..SESSIONS_FILTERS.find("mod tests").unwrap()];
    let sessions = calls_in(list);
    assert!(sessions.len() > 200, "{}", sessions.len());
    let allowed = allowed();
    // another filter of sessions makes inotify unknown
    let missing: Vec<_> = sessions
        .iter()
        .filter(|call| !allowed.contains_key(*call) && !call.starts_with("inotify"))
        .collect();
    assert_eq!(missing, Vec::<&String>::new());
}

#[test]
fn the_profile_allows_what_makes_a_room() {
    let allowed = allowed();
    let mut needed = calls_in(ROOMS[3]);
    for source in ROOMS {
        for module in
            ["mount::", "thread::unshare", "thread::move_into", "process::pivot", "process::chroot"]
        {
            for (at, _) in source.match_indices(&format!("rustix::{module}")) {
                let used = &source[at + "rustix::".len()..];
                if used.starts_with("mount::{")
                    || used[module.len()..].starts_with(char::is_uppercase)
                {
                    continue; // a type
                }
                let known = ROOM_CALLS.iter().find(|(name, _)| used.starts_with(name));
                let (_, call) = known.unwrap_or_else(|| {
                    panic!("is the call of {} in the profile?", used.lines().next().unwrap())
                });
                needed.insert((*call).to_owned());
            }
        }
    }
    needed.insert("sethostname".to_owned());
    assert!(
        ["unshare", "setns", "mount", "umount2", "pivot_root", "mount_setattr"]
            .iter()
            .all(|call| needed.contains(*call)),
        "{needed:?}"
    );
    let missing: Vec<_> = needed.iter().filter(|call| !allowed.contains_key(*call)).collect();
    assert_eq!(missing, Vec::<&String>::new());
}

#[test]
fn each_service_of_the_compose_file_is_locked_down() {
    for name in ["interpreterd", "postgres"] {
        let service = service(name);
        assert_eq!(value(service, "read_only"), Some("true"), "{name}");
        assert_eq!(value(service, "cap_drop"), Some("[ALL]"), "{name}");
        assert!(service.contains("\n      - no-new-privileges:true\n"), "{name}");
        for key in ["mem_limit", "pids_limit", "healthcheck", "stop_grace_period", "restart"] {
            assert!(value(service, key).is_some(), "{name} has no {key}");
        }
        assert_eq!(value(service, "privileged"), None, "{name}");
        let image = value(service, "image").unwrap();
        assert!(image.contains(':') && !image.contains("latest"), "{image}");
    }
    let ours = service("interpreterd");
    assert_eq!(value(ours, "user"), Some("\"10001:10001\""));
    assert_eq!(value(ours, "cap_add"), None);
    assert!(ours.contains("\n      - seccomp=./deploy/seccomp.json\n"));
    assert!(ours.contains("\n      - \"127.0.0.1:${SERVICE_PORT:-8080}:8080\"\n"));
    assert_eq!(value(service("postgres"), "ports"), None);
    assert!(COMPOSE.contains("\n  store:\n    internal: true\n"));
}

#[test]
fn the_compose_file_gives_the_service_more_time_and_processes_than_it_asks_for() {
    let ours = service("interpreterd");
    let number = |text: &str| -> u64 {
        text.chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap()
    };
    let grace = number(value(ours, "INTERPRETERD_SHUTDOWN_GRACE_SECONDS").unwrap());
    assert!(number(value(ours, "stop_grace_period").unwrap()) >= grace + 35);
    let sessions = number(value(ours, "INTERPRETERD_MAX_SESSIONS").unwrap());
    let table = interpreterd::config::table();
    let processes = table.lines().find(|line| line.contains("`--local-processes`")).unwrap();
    let processes = number(processes.split('|').nth(3).unwrap());
    assert_eq!(number(value(ours, "pids_limit").unwrap()), sessions * processes + 512);
}

#[test]
fn every_name_in_the_example_of_settings_exists() {
    let table = interpreterd::config::table();
    let names: BTreeSet<&str> = ENV_EXAMPLE
        .lines()
        .filter_map(|line| line.strip_prefix('#')?.split_once('='))
        .map(|(name, _)| name)
        .filter(|name| {
            name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
        })
        .collect();
    assert!(names.len() > 15, "{names:?}");
    let is_setting = |name: &str| {
        let mut words = table.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words.any(|word| word == name)
    };
    let interpolated = interpolated();
    let unknown: Vec<_> =
        names.iter().filter(|name| !interpolated.contains(*name) && !is_setting(name)).collect();
    assert_eq!(unknown, Vec::<&&str>::new());
    // and what the compose file asks its environment for is told there, but the image's tag
    let untold: Vec<_> = interpolated
        .iter()
        .filter(|name| !names.contains(*name) && **name != "SERVICE_VERSION")
        .collect();
    assert_eq!(untold, Vec::<&&str>::new());
    let set: Vec<_> =
        ENV_EXAMPLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    assert_eq!(set, Vec::<&str>::new(), "the example sets nothing by itself");
}

#[test]
fn the_image_is_this_version_on_the_toolchain_of_the_repository() {
    let version = env!("CARGO_PKG_VERSION");
    assert!(DOCKERFILE.contains(&format!("org.opencontainers.image.version=\"{version}\"")));
    assert!(COMPOSE.contains(&format!("image: interpreterd:${{SERVICE_VERSION:-{version}}}")));
    let toolchain = include_str!("../../rust-toolchain.toml");
    let channel = toolchain.lines().find_map(|line| line.strip_prefix("channel = \"")).unwrap();
    let minor = channel.trim_end_matches('"').rsplit_once('.').unwrap().0;
    assert!(DOCKERFILE.contains(&format!("ARG RUST_IMAGE=rust:{minor}-bookworm\n")), "{minor}");
    assert!(DOCKERFILE.contains("\nUSER 10001:10001\n"));
    assert!(DOCKERFILE.contains("CMD [\"interpreterd\", \"healthcheck\"]"));
    assert!(!DOCKERFILE.contains(":latest") && !DOCKERFILE.starts_with("# syntax="));
}

#[test]
fn the_build_is_given_what_it_needs_by_name() {
    let mut lines = DOCKERIGNORE.lines().filter(|line| !line.starts_with('#'));
    assert_eq!(lines.next(), Some("*"), "all is left out first");
    let taken: BTreeSet<&str> =
        DOCKERIGNORE.lines().filter_map(|line| line.strip_prefix('!')).collect();
    let needed = ["Cargo.lock", "Cargo.toml", "LICENSE", "build.rs", "guest", "migrations", "src"];
    assert_eq!(taken, BTreeSet::from(needed));
}
