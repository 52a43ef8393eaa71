//! Programs that do several things at once, as models write them.

use serde_json::json;

use crate::support::told::{each, tells};

#[tokio::test]
async fn top_level_await_works_beside_asyncio_run_in_any_order() {
    let cell = "
        import asyncio
        async def work(x):
            await asyncio.sleep(0.01)
            return x * 2
        print(await asyncio.gather(work(1), work(2)))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work(n)) for n in range(3)]
        print([task.result() for task in tasks])
        async def numbers():
            for n in range(3): yield n
        print([n async for n in numbers()])";
    assert_eq!(
        each([
            cell,
            "asyncio.run(work(3))",
            "await work(4)",
            "def plain(): return asyncio.run(work(5))\nplain()",
            "asyncio.new_event_loop().run_until_complete(work(6))",
            "await asyncio.wait_for(asyncio.to_thread(lambda: 'thread'), 5)",
        ])
        .await,
        json!([
            {"stdout": "[2, 4]\n[0, 2, 4]\n[0, 1, 2]\n"},
            {"value": "6"}, {"value": "8"}, {"value": "10"}, {"value": "12"}, {"value": "'thread'"}
        ])
    );
}

#[tokio::test]
async fn there_is_an_event_loop_in_every_cell_as_in_the_first() {
    let script = "
        import asyncio
        loop = asyncio.get_event_loop()
        print(loop.run_until_complete(asyncio.sleep(0.01, 'done')))";
    let closing = format!("{script}\n        loop.close()");
    assert_eq!(
        each([script, "asyncio.run(asyncio.sleep(0, 1))", &closing, &closing, script]).await,
        json!([
            {"stdout": "done\n"}, {"value": "1"}, {"stdout": "done\n"}, {"stdout": "done\n"}, {"stdout": "done\n"}
        ])
    );
}

#[tokio::test]
async fn asyncio_talks_to_sockets_programs_and_executors() {
    let code = "
        import asyncio
        async def main():
            async def handle(reader, writer):
                writer.write((await reader.readline()).upper())
                writer.close()
            server = await asyncio.start_server(handle, '127.0.0.1', 0)
            async with server:
                reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
                writer.write(b'hello\\n')
                print(await reader.read())
            process = await asyncio.create_subprocess_exec('cat', stdin=-1, stdout=-1)
            print((await process.communicate(b'piped'))[0])
            shell = await asyncio.create_subprocess_shell('echo out; echo err >&2; exit 3', stdout=-1, stderr=-1)
            print(await shell.communicate(), shell.returncode)
            queue = asyncio.Queue()
            async def put():
                for n in range(3): await queue.put(n)
            async def get(): return [await queue.get() for _ in range(3)]
            print((await asyncio.gather(put(), get()))[1])
            late = await asyncio.gather(asyncio.wait_for(asyncio.sleep(5), 0.02), asyncio.sleep(0, 'in time'), return_exceptions=True)
            print([repr(result) for result in late])
            loop = asyncio.get_running_loop()
            print(await loop.run_in_executor(None, sum, [1, 2]))
        asyncio.run(main())";
    assert_eq!(
        tells(code).await,
        json!({"stdout": "b'HELLO\\n'\nb'piped'\n(b'out\\n', b'err\\n') 3\n[0, 1, 2]\n['TimeoutError()', \"'in time'\"]\n3\n"})
    );
}

#[tokio::test]
async fn processes_of_every_start_method_work() {
    assert_eq!(
        each([
            "
            import multiprocessing as mp
            def square(x): return x * x
            with mp.Pool(2) as pool: print(pool.map(square, range(4)))
            if __name__ == '__main__':
                for method in ('fork', 'spawn', 'forkserver'):
                    with mp.get_context(method).Pool(2) as pool: print(pool.map(abs, [-1, -2]))",
            "
            def work(queue, n): queue.put(n * n)
            queue = mp.Queue()
            started = [mp.Process(target=work, args=(queue, n)) for n in range(3)]
            for process in started: process.start()
            print(sorted(queue.get() for _ in started))
            for process in started: process.join()
            print([process.exitcode for process in started])",
            "
            def add(shared, numbers, n):
                shared[n] = n
                numbers.append(n)
            with mp.Manager() as manager:
                shared, numbers = manager.dict(), manager.list()
                started = [mp.Process(target=add, args=(shared, numbers, n)) for n in range(2)]
                for process in started: process.start()
                for process in started: process.join()
                print(sorted(shared.items()), sorted(numbers))",
        ])
        .await,
        json!([
            {"stdout": "[0, 1, 4, 9]\n[1, 2]\n[1, 2]\n[1, 2]\n"},
            {"stdout": "[0, 1, 4]\n[0, 0, 0]\n"},
            {"stdout": "[(0, 0), (1, 1)] [0, 1]\n"}
        ])
    );
}

#[tokio::test]
async fn processes_share_memory_counters_and_pipes() {
    assert_eq!(
        each([
            "
            import multiprocessing as mp
            from multiprocessing import shared_memory
            import numpy as np
            block = shared_memory.SharedMemory(create=True, size=80)
            def fill(name):
                other = shared_memory.SharedMemory(name=name)
                np.ndarray(10, dtype='f8', buffer=other.buf)[:] = 7
                other.close()
            process = mp.Process(target=fill, args=(block.name,)); process.start(); process.join()
            print(np.ndarray(10, dtype='f8', buffer=block.buf).sum())
            block.close(); block.unlink()",
            "
            counter = mp.Value('i', 0)
            def count():
                for _ in range(100):
                    with counter.get_lock(): counter.value += 1
            started = [mp.Process(target=count) for _ in range(3)]
            for process in started: process.start()
            for process in started: process.join()
            counter.value",
            "
            here, there = mp.Pipe()
            process = mp.Process(target=lambda: there.send({'a': 1})); process.start()
            here.recv()",
        ])
        .await,
        json!([{"stdout": "70.0\n"}, {"value": "300"}, {"value": "{'a': 1}"}])
    );
}

#[tokio::test]
async fn a_class_of_one_cell_goes_through_pickles_and_processes_of_others() {
    assert_eq!(
        each([
            "
            from dataclasses import dataclass
            @dataclass(frozen=True)
            class Point:
                x: int
                def moved(self): return Point(self.x + 1)",
            "import pickle\npickle.loads(pickle.dumps([Point(1), Point]))[0] == Point(1)",
            "
            import multiprocessing as mp
            from concurrent.futures import ProcessPoolExecutor
            with mp.Pool(2) as pool: print(pool.map(Point.moved, [Point(1), Point(5)]))
            with ProcessPoolExecutor(2) as executor: print(list(executor.map(Point.moved, [Point(7)])))",
        ])
        .await,
        json!([
            {},
            {"value": "True"},
            {"stdout": "[Point(x=2), Point(x=6)]\n[Point(x=8)]\n"}
        ])
    );
}

#[tokio::test]
async fn executors_of_both_kinds_work_and_tell_of_what_fails() {
    assert_eq!(
        each([
            "
            from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
            def cube(x): return x ** 3
            with ThreadPoolExecutor() as executor: print(list(executor.map(cube, range(4))))
            with ProcessPoolExecutor() as executor:
                print(sorted(done.result() for done in as_completed([executor.submit(cube, n) for n in range(4)])))",
            "with ProcessPoolExecutor(1) as executor: executor.submit(int, 'x').result()",
            "import os\nwith ProcessPoolExecutor(1) as executor: executor.submit(os._exit, 1).result()",
            "
            import asyncio
            async def main():
                with ProcessPoolExecutor(1) as executor:
                    return await asyncio.get_running_loop().run_in_executor(executor, cube, 3)
            asyncio.run(main())",
        ])
        .await,
        json!([
            {"stdout": "[0, 1, 8, 27]\n[0, 1, 8, 27]\n"},
            {"error": ["ValueError", "invalid literal for int() with base 10: 'x'"], "exit_code": 1},
            {
                "error": ["BrokenProcessPool", "A process in the process pool was terminated abruptly while the future was running or pending."],
                "exit_code": 1
            },
            {"value": "27"}
        ])
    );
}

#[tokio::test]
async fn forty_threads_at_once_are_no_matter() {
    let count = "
        import threading
        ready = threading.Barrier(41)
        def wait(): ready.wait(10)
        threads = [threading.Thread(target=wait) for _ in range(40)]
        for thread in threads: thread.start()
        ready.wait(10)
        for thread in threads: thread.join()
        print(len(threads))";
    let child = format!(
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', '''import textwrap; exec(textwrap.dedent(\"\"\"{count}\"\"\"))'''])\nNone"
    );
    assert_eq!(each([count, &child]).await, json!([{"stdout": "40\n"}, {"stdout": "40\n"}]));
}

#[tokio::test]
async fn threads_queues_and_their_pools_work() {
    let code = "
        import queue, threading
        from multiprocessing.pool import ThreadPool
        with ThreadPool(3) as pool: print(pool.map(lambda x: x * 2, range(4)))
        jobs, done = queue.Queue(), []
        def work():
            while (job := jobs.get()) is not None: done.append(job * 10)
        thread = threading.Thread(target=work); thread.start()
        for job in (1, 2, None): jobs.put(job)
        thread.join(); print(done)
        def say(n): print('thread', n)
        for n in range(3):
            thread = threading.Thread(target=say, args=(n,)); thread.start(); thread.join()
        event = threading.Event(); threading.Timer(0.02, event.set).start(); print(event.wait(5))
        def fail(): raise SystemExit(3)
        thread = threading.Thread(target=fail); thread.start(); thread.join()";
    assert_eq!(
        tells(code).await,
        json!({"stdout": "[0, 2, 4, 6]\n[10, 20]\nthread 0\nthread 1\nthread 2\nTrue\n"})
    );
}

#[tokio::test]
async fn what_a_pool_of_an_earlier_cell_prints_for_this_cell_is_this_cells() {
    assert_eq!(
        each([
            "
            import asyncio
            from concurrent.futures import ThreadPoolExecutor
            from multiprocessing.pool import ThreadPool
            executor, pool = ThreadPoolExecutor(2), ThreadPool(2)
            for n in range(4): executor.submit(print, n).result(); pool.apply(print, (n,))
            await asyncio.to_thread(print, 'first')",
            "executor.submit(print, 'executor').result(); pool.apply(print, ('pool',))",
            "await asyncio.to_thread(print, 'second')",
        ])
        .await,
        json!([
            {"stdout": "0\n0\n1\n1\n2\n2\n3\n3\nfirst\n"},
            {"stdout": "executor\npool\n"},
            {"stdout": "second\n"}
        ])
    );
}
