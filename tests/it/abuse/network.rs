//! Hostile code looks for the host's network, and for others through sockets.

use super::Expected::{Fails, Shows};
use super::{Scene, server_apart};
use crate::support::server::caller;

cell!(
    the_service_itself_is_not_reached_over_loopback,
    r#"
hosts = "127.0.0.1 127.1.2.3 0.0.0.0 localhost sandbox"
{attempt(socket.create_connection, (host, HOST_PORT), 2) for host in hosts.split()}
"#,
    Shows("{'ECONNREFUSED'}"),
    restricted: Shows("{'EPERM', 'gaierror'}")
);

cell!(
    the_service_is_not_reached_over_the_newer_loopback,
    r#"
hosts = "::1 ::ffff:127.0.0.1 ::"
{attempt(socket.create_connection, (host, HOST_PORT), 2) for host in hosts.split()}
"#,
    Shows("{'ECONNREFUSED'}"),
    restricted: Shows("{'EPERM'}")
);

cell!(
    no_packet_reaches_the_host_or_anybody,
    r#"
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.connect(("127.0.0.1", HOST_PORT))
one.send(b"x")
hosts = "8.8.8.8 10.0.0.1 169.254.169.254"
attempt(one.send, b"x"), {attempt(one.sendto, b"x", (host, 53)) for host in hosts.split()}
"#,
    Shows("('ECONNREFUSED', {'ENETUNREACH'})"),
    restricted: Fails("PermissionError")
);

cell!(
    there_is_no_internet_and_no_name_service,
    r#"
hosts = "1.1.1.1 2606:4700::1111"
({attempt(socket.create_connection, (host, 443), 2) for host in hosts.split()},
 attempt(socket.getaddrinfo, "example.org", 443),
 attempt(socket.gethostbyname, "host.docker.internal"))
"#,
    Shows("({'ENETUNREACH'}, 'gaierror', 'gaierror')"),
    restricted: Shows("({'EPERM'}, 'gaierror', 'gaierror')")
);

cell!(
    the_clouds_metadata_is_not_reached,
    r#"
hosts = "169.254.169.254 169.254.170.2 100.100.100.200 172.17.0.1 192.168.0.1 fd00:ec2::254"
{attempt(socket.create_connection, (host, 80), 2) for host in hosts.split()}
"#,
    Shows("{'ENETUNREACH'}"),
    restricted: Shows("{'EPERM'}")
);

cell!(
    its_own_loopback_works,
    r#"
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname(), 2).getpeername()[0]
"#,
    Shows("'127.0.0.1'"),
    restricted: Fails("PermissionError")
);

cell!(
    abstract_sockets_of_the_host_are_not_there,
    r#"
one = socket.socket(socket.AF_UNIX)
attempt(one.connect, "\0" + HOST_ABSTRACT), HOST_ABSTRACT in open("/proc/net/unix").read()
"#,
    Shows("('ECONNREFUSED', False)"),
    restricted: Fails("PermissionError")
);

cell!(
    sockets_of_the_host_that_have_a_path_are_not_there,
    r#"
paths = """/run/docker.sock /var/run/docker.sock /run/dbus/system_bus_socket /run/systemd/notify
/tmp/.X11-unix/X0 /dev/log"""
{attempt(socket.socket(socket.AF_UNIX).connect, path) for path in paths.split()}
"#,
    Shows("{'ENOENT'}"),
    restricted: Fails("PermissionError")
);

cell!(
    sockets_that_reach_past_the_network_are_refused,
    r#"
families = """PACKET NETLINK VSOCK ALG BLUETOOTH XDP CAN TIPC RDS KCM QIPCRTR SMC KEY PPPOX
ISDN IUCV NFC MCTP"""
numbers = dict(zip(families.split(), (17, 16, 40, 38, 31, 44, 29, 30, 21, 41, 42, 43, 15, 24,
                                      34, 32, 39, 45)))
kinds = [(number, kind, 0) for number in numbers.values() for kind in (1, 2, 3, 5)]
raw = [(socket.AF_INET, socket.SOCK_RAW, 1), (socket.AF_INET6, socket.SOCK_RAW, 58)]
netfilter, audit = (numbers["NETLINK"], 3, 12), (numbers["NETLINK"], 3, 9)
{attempt(socket.socket, *kind) for kind in [*kinds, *raw, netfilter, audit]}
"#,
    Shows("{'EPERM'}")
);

cell!(
    pairs_of_sockets_are_local_ones,
    r#"
others = [family for family in range(48) if family != socket.AF_UNIX]
{call("socketpair", family, 1, 0, bytes(8)) for family in others}, len(socket.socketpair())
"#,
    Shows("({'EPERM'}, 2)")
);

cell!(
    protocols_that_load_modules_into_the_host_are_refused,
    r#"
DCCP, UDPLITE, SCTP, MPTCP, SMC, L2TP, UNKNOWN = 33, 136, 132, 262, 256, 115, 250
STREAM, DATAGRAM, SEQUENCE, DCCP_KIND = 1, 2, 5, 6
kinds = [(STREAM, MPTCP), (STREAM, SMC), (STREAM, SCTP), (SEQUENCE, SCTP), (DCCP_KIND, DCCP),
         (DATAGRAM, UDPLITE), (DATAGRAM, L2TP), (STREAM, UNKNOWN)]
families = (socket.AF_INET, socket.AF_INET6)
seen = [attempt(socket.socket, family, *kind) for family in families for kind in kinds]
{word if isinstance(word, str) else "made" for word in seen}
"#,
    Shows("{'EPERM'}")
);

cell!(
    pings_are_not_sent,
    "refused(socket.socket, socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)",
    Shows("True")
);

cell!(
    the_interface_cannot_be_changed,
    r#"
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
request = struct.pack("16sH14s", b"lo", 1, b"") + bytes(88)
GET_FLAGS, SET_FLAGS, SET_ADDRESS, SET_MTU, ADD_ROUTE, ADD_BRIDGE = (
    0x8913, 0x8914, 0x8916, 0x8922, 0x890b, 0x89a0)
changes = (SET_FLAGS, SET_ADDRESS, SET_MTU, ADD_ROUTE, ADD_BRIDGE)
(len(fcntl.ioctl(one, GET_FLAGS, request)) > 0,
 {attempt(fcntl.ioctl, one, change, bytearray(request)) for change in changes})
"#,
    Shows("(True, {'EPERM'})"),
    restricted: Fails("PermissionError")
);

cell!(
    options_of_sockets_that_need_an_administrator_are_refused,
    "
MARK, PRIORITY, SNDBUFFORCE, RCVBUFFORCE = 36, 12, 32, 33
TRANSPARENT, TCP_REPAIR, REPLACE_TABLE = 19, 19, 64
one = socket.socket()
{*(attempt(one.setsockopt, socket.SOL_SOCKET, option, 7)
   for option in (MARK, PRIORITY, SNDBUFFORCE, RCVBUFFORCE)),
 attempt(one.setsockopt, socket.SOL_IP, TRANSPARENT, 1),
 attempt(one.setsockopt, socket.SOL_IP, REPLACE_TABLE, bytes(200)),
 attempt(one.setsockopt, socket.IPPROTO_TCP, TCP_REPAIR, 1)}
",
    Shows("{'EPERM'}"),
    restricted: Fails("PermissionError")
);

cell!(
    protocols_cannot_be_stacked_on_a_connection,
    r#"
server = socket.create_server(("127.0.0.1", 0))
one = socket.create_connection(server.getsockname(), 2)
TCP_ULP = 31
[name for name in (b"tls", b"mptcp", b"smc", b"espintcp")
 if attempt(one.setsockopt, socket.IPPROTO_TCP, TCP_ULP, name) is None]
"#,
    Shows("[]"),
    restricted: Fails("PermissionError")
);

cell!(
    no_program_for_the_kernel_is_hung_on_a_socket,
    r#"
# each takes memory for machine code, which all of the host shares and no session is charged for
ATTACH_FILTER, ATTACH_BPF, REUSEPORT_CBPF, REUSEPORT_EBPF = 26, 50, 51, 52
code = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0xffff))
program = struct.pack("HxxxxxxQ", 1, ctypes.addressof(code))
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
[attempt(one.setsockopt, socket.SOL_SOCKET, option, program)
 for option in (ATTACH_FILTER, ATTACH_BPF, REUSEPORT_CBPF, REUSEPORT_EBPF)]
"#,
    Shows("['EPERM', 'EPERM', 'EPERM', 'EPERM']"),
    restricted: Fails("PermissionError")
);

cell!(
    a_sender_cannot_pretend_to_be_another,
    r#"
one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
def send(pid, user, group):
    who = struct.pack("iII", pid, user, group)
    return one.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, who)])
own = os.getpid()
(attempt(send, 1, 1000, 1000), attempt(send, own, 0, 0), attempt(send, own, 1000, 0),
 attempt(send, own, 1000, 1000))
"#,
    Shows("('EPERM', 'EINVAL', 'EINVAL', 1)"),
    restricted: Fails("PermissionError")
);

cell!(
    the_network_shown_in_proc_is_its_own,
    r#"
tables = [open(f"/proc/net/{name}").read().splitlines()[1:] for name in ("tcp", "tcp6", "udp")]
interfaces = [line.split()[0] for line in open("/proc/net/dev").read().splitlines()[2:]]
sum(tables, []), interfaces
"#,
    Shows("([], ['lo:'])"),
    restricted: Fails("PermissionError")
);

#[tokio::test]
async fn abstract_names_of_two_sessions_do_not_meet() {
    let caller = caller();
    let scene = Scene::open(&caller).await;
    let code = r#"
one, two = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
attempt(one.connect, "\0clash"), attempt(two.bind, "\0clash"), attempt(two.listen)
"#;
    assert_eq!(scene.attacker.text(code).await, "('ECONNREFUSED', None, None)");
    assert_eq!(scene.witness.text(code).await, "('ECONNREFUSED', None, None)");
    let listed = "open('/proc/net/unix').read().count('@clash')";
    assert_eq!(scene.witness.text(listed).await, "1");
    scene.close().await;
}

#[tokio::test]
async fn ports_of_two_sessions_do_not_meet() {
    let caller = caller();
    let scene = Scene::open(&caller).await;
    let code = r#"
seen = attempt(socket.create_connection, ("127.0.0.1", 8765), 2)
server = socket.create_server(("127.0.0.1", 8765))
seen
"#;
    for session in [&scene.attacker, &scene.witness] {
        assert_eq!(session.text(code).await, "'ECONNREFUSED'");
    }
    scene.close().await;
}

#[tokio::test]
async fn descriptors_kept_on_their_way_do_not_keep_the_service_from_making_sessions() {
    let server = server_apart().await;
    let caller = server.caller();
    let scene = Scene::open(&caller).await;
    let flood = r#"
pairs = []
def flood():
    for _ in range(20):
        pairs.append(socket.socketpair())
        socket.send_fds(pairs[-1][0], [b"x"], [0] * 250)
attempt(flood)
"#;
    assert_eq!(scene.attacker.text(flood).await, "'ETOOMANYREFS'");
    let later = caller.session().await;
    assert_eq!(later.text("1 + 1").await, "2");
    assert_eq!(later.delete().await, 204);
    scene.close().await;
}

#[tokio::test]
async fn pipes_kept_by_one_session_do_not_keep_others_from_printing() {
    let server = server_apart().await;
    let caller = server.caller();
    let scene = Scene::open(&caller).await;
    let flood = r#"
children, (reader, writer) = [], os.pipe()
for _ in range(3):
    pid = os.fork()
    if not pid:
        attempt(lambda: [os.pipe() for _ in range(1000)])
        os.write(writer, b"x")
        signal.pause()
    children.append(pid)
done = b""
while len(done) < 3: done += os.read(reader, 3)
"#;
    scene.attack(flood).await;
    let later = caller.session().await;
    let printed = later.exec("print('x' * (1 << 19))").await;
    assert_eq!(printed["stdout_bytes"], (1 << 19) + 1);
    assert_eq!(later.delete().await, 204);
    scene.close().await;
}
