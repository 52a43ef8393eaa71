"""The report's fixed sentences: the method, the scenes, and what the figures do not say."""

METHOD = """
One driver process runs one scene after the other. In a scene all contestants are running, and they are asked in turns
(in blocks where a sample is short), so that the machine's noise hits all alike. The first round is thrown away. Every
answer is checked; a scene with a wrong one has no figures at all. The driver's garbage collector is off.

- **interpreterd** is a release build, started with its defaults on a fresh data folder, so with its database, its
  isolation and its limits. The driver speaks to it through one kept connection, by hand: no client library is measured.
- **interpreterd, no pool** is the same with `INTERPRETERD_LOCAL_POOL=0`: no sandbox is made before it is asked for.
- **jupyter-kernel-gateway** runs with its defaults: `POST /api/kernels`, then `execute_request` through the kernel's
  websocket, until both the reply and `idle` are there.
- **raw ipykernel** is the same kernel without a gateway, started and spoken to by jupyter_client over ZeroMQ.
- **cold Python** is `python -c "import IPython, numpy, pandas, matplotlib.pyplot; print(1+1)"`.

The rivals' versions are pinned in `benches/requirements.txt`; numpy, pandas, matplotlib and IPython are those of the
guest. p50, p95 and p99 are percentiles of all samples, linear between neighbours. All samples are in `benches/results`,
one file a scene: benchmark, contestant, round, value, unit.
"""

SCENES = {
    "new_session": (
        "New session",
        """
From asking for a session until the answer of `print(1+1)`. Before each sample the pool is full, and nothing of the
last sample is left running; then the machine rests for 20 ms, since callers seldom come to one that has just done the
same (Linux moves a process between cgroups in microseconds if it has just done so, and in milliseconds after a rest).

`+ imports` runs `import IPython, numpy, pandas, matplotlib.pyplot` in that first cell too: a session of interpreterd
has them imported, a kernel has not. The floor is `fork`, `unshare` of all seven namespaces, `exit` and `wait` in a
Python with the same imports: what cannot be left out without a pool. The raw kernel's sample ends with the reply alone.
""",
    ),
    "warm_exec": (
        "Warm cell",
        """
`print(1+1)` in a session that has run cells before. *In the sandbox* is `duration_ms` of the answer, *own part* is the
rest of the whole: HTTP, the lease, and both writes to the database. *Quick ACKs* is the gateway read by a client that
acknowledges every packet at once (`TCP_QUICKACK`).
""",
    ),
    "memory": (
        "Memory",
        """
Idle sessions that have run `import pandas`; PSS of the kernel and the room's process 1, divided by the number of
sandboxes (those in the pool among them). PSS divides a shared page by all that share it, so what sessions have not
changed of the warm Python costs each of them the less the more there are; what a session shares with nobody does not
depend on their number. A session grows with what it does: one row has made a small DataFrame too. How far MemAvailable
fell has the kernel's own part in it (page tables, namespaces, mounts), and whatever else the machine did meanwhile.
The rivals are ten Pythons and ten kernels with all imports of the warm Python.
""",
    ),
    "sixteen_callers": (
        "Sixteen callers",
        """
Each caller has its own session and connection and asks again as soon as it is answered. One process drives all of them
with epoll; its own load on a processor stands beside.
""",
    ),
    "churn": (
        "Churn",
        """
Callers that make a session, run one cell and delete it, again and again for some seconds. The table gives the median of
the rounds. A pool does not make more sandboxes a second, it makes them earlier: where callers never rest, it is empty.
""",
    ),
    "stdout": (
        "Output",
        """
100 MB of stdout by one cell, over the whole time until the answer. The answer keeps 1 MiB and counts all. Growth is the
service's highest resident memory during the cell over what it held before.
""",
    ),
    "files": (
        "Files",
        """
A cell that does nothing, in a folder with that many small files. Each answer says which files the cell changed, so the
service has to know them.
""",
    ),
    "human_eval": (
        "HumanEval",
        """
Prompt, canonical solution, tests and `check` of all 164 problems through `POST /v1/execute`, each in a sandbox of its
own, four callers at once. It measures the sandbox, not a model: every program is known to be right, so a failure would
be the sandbox's own.
""",
    ),
    "packages": (
        "Packages",
        """
Sessions that ask for three small pure packages which the guest has not. Measured until the session is ready; then a
cell imports all three. *At once* asks while the last session's end may still be going on, *after a rest* with a full
pool.
""",
    ),
    "interpret": (
        "Interpret",
        """
`POST /v1/interpret` with a model of our own on loopback, a Python process beside the driver: it calls the tool with
`print(1+1)` in every turn but the last. All figures of the first table are for one turn. They are taken in a session
that exists, in five turns with four cells, and the model answers at once. *In the sandbox* is the sum of the cells'
`duration_ms`, *in the model* is what the model took from the last byte of the request to its answer, *own part* is the
rest of the whole: HTTP on both sides, the lease, the loop, the database. The floor is the request of the last turn sent
straight to the model by Python's `http.client`.

In the second table fifty callers ask at once, each for a sandbox of its own, and the model takes a second a turn, for
three turns with two cells: three seconds are the ideal.
""",
    ),
    "e2b": (
        "Cells at E2B",
        """
`1 + 1` in a sandbox that has run cells before, at the double of E2B's cloud that the tests have (`tests/doubles`), on
loopback, one process of it for each transport. It shows what the service adds to E2B, not how fast E2B is. All have a
sandbox of their own there, and take turns of five cells in an order by lot.

*E2B's Python SDK* is `Sandbox.run_code` in the driver. *In E2B* is `duration_ms` of the answer, from sending the cell
to the end of what comes of it; *own part* is the rest of the whole: HTTP, the lease, the database, and one call that
the SDK does not make, for the service lists the files after each cell. The floors are these calls by Python's
`http.client`, and what they show beside each other is what it costs not to keep a connection (with TLS: a whole
handshake). The service keeps its own for two seconds, the SDK for minutes, and here nobody rests for so long.
""",
    ),
    "pydantic": (
        "Python in WebAssembly",
        """
The provider `pydantic` beside the genuine mcp-run-python on the same Deno. *Through interpreterd* is an entry whose
`command` starts mcp-run-python for each session. The row without more words is that server alone: started by the
driver, and spoken to by nothing but JSON lines over its pipes. It finds a cache of V8's code that is filled; the
service's own server keeps none, it starts from a snapshot of Python's memory.

The first table is from asking for a session, or from starting the process, until the answer of `1+1`. The second is
until the session is ready: then its Python is loaded, while mcp-run-python by itself answers the handshake and loads
Python with the first cell. Before each sample the pool (two sandboxes) is full, and the machine rests for 200 ms; a
start of mcp-run-python takes seconds, so it has a third of the samples.

A warm cell is `1+1` too, in blocks of ten, in a session that has run cells before. *In the sandbox* is `duration_ms` of
the answer, *own part* the rest of the whole: HTTP, the lease, MCP with the process, the listing of the files, and both
writes to the database. mcp-run-python by itself does none of that, and forgets all variables with each call.

Memory is that of the Deno process, read from `/proc/PID/smaps_rollup`, with several sandboxes of one contestant alive
and none of another: PSS divides the pages of Deno's program by all that run it. The medians are over the processes.
What the service itself holds for a sandbox (a connection, and for a command a small process that watches it) is not in
them.
""",
    ),
    "store": (
        "A million runs",
        """
The store in its two databases, filled step by step through its own methods, and measured at each step with nothing
else going on. A run every two seconds makes a million of them three weeks. Of 100 runs 80 are exec, 10 shell, 7 execute
and 3 interpret; of 1,000 runs 900 are a success and 1 was cancelled; of 20 runs one is another provider's; 20 runs are
one session's, and all are one tenant's. A run holds half a KiB to four KiB of code and output; every fiftieth has an
output file and came with an idempotency key.

The first table is asked over HTTP, through one kept connection, of a service that was started on what is there: pages
of 20, one run whole, and `print(1+1)` in a warm session, in which a begin and a finish are. With a key there is a
claim in it too; *told again* is the second request with the same key. The second table calls the store from Rust
(`benches/store`), without a service: *claim* looks up what a key was used for. All operations are measured in turns;
one that has taken ten seconds in all is asked less often, twenty times at least.

Postgres is a server of its own on the same machine, on a Unix socket, with its defaults: every commit is on the disk
before it is answered. It is vacuumed and analyzed before each measurement, as autovacuum would do a little later.
SQLite writes its log with `synchronous = normal`: a machine's loss of power may take the last moments, the end of the
process takes nothing.
""",
    ),
    "writers": (
        "Sixty-four writers",
        """
A warm cell of one caller, who rests for 10 ms in the middle between two, alone and beside 64 other sessions whose cells
come from a process beside the driver, each session's after rests of random length: at a tenth and at four tenths of the
rate that the 64 reach when none of them rests. Both services run, and the blocks of both take turns. Callers who never
rest keep both processors busy, and measure the queue there: that is the row *without a rest*, for plain truth.

The store alone does the same without service and sandbox, from Rust: one writer who rests for 10 ms in the middle,
alone and beside 63 others; a sample is the begin and the finish of a run. *A transaction* is how many writes were
committed in one (counted by SQLite's wal-index, and by `pg_stat_database`), *a sync of the log* how many writes reached
the disk together (`pg_stat_wal`); SQLite does not bring its log to the disk with each commit. *Processors* is how busy
all processors of the machine were, whoever kept them so.
""",
    ),
}

HONEST = """
- The machine is small and shared. Compare figures of one run with each other, not with another run's or another
  machine's; the high percentiles most of all.
- A new session is fast because Python and its libraries are imported once, and every session is a copy of that process.
  A kernel of Jupyter starts a new Python each time. The row `+ imports` is the fair one for code that uses pandas, the
  plain row for code that does not.
- With a full pool, the work is done before the clock starts. What a caller sees who comes faster than the pool is
  filled is the row without a pool, and the churn.
- Jupyter does more for a cell than interpreterd does: it keeps a history on disk, echoes the input, and serves several
  clients of one kernel. interpreterd does what the gateway does not: it isolates, limits and records. Neither is taken
  out of the figures.
- About 40 ms of the gateway's warm cell are no work: it sends several small messages, and TCP (Nagle's algorithm at its
  end, delayed acknowledgements at ours) makes each wait for the one before. That is how it is with its defaults and a
  common client; the row *quick ACKs* is what is left when the client avoids it.
- The gateway can start kernels ahead of time (`prespawn_count`), once, at its own start; it does not hand them to
  `POST /api/kernels`, so there is nothing of it to measure here.
- jupyter_client and websocket-client are Python and are part of their rows. Their share of a warm cell is well under a
  millisecond, but it is not nothing beside a raw kernel.
- E2B itself is a network away, its double is not. There each call takes a round trip besides: one for a cell of the
  SDK's, two for a cell of the service, which lists the files too. A new connection takes two or three more, and a
  service whose callers think for longer than it keeps its connections pays for one with each cell.
- Deno and Pyodide are no small thing to keep ready: a pool of the provider `pydantic` holds that much memory for each
  sandbox in it, and a sandbox of the provider `local` a small part of that.
- All contestants run on the same two or more cores as the driver, which takes its share.
"""
