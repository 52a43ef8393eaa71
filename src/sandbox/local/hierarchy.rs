//! The cgroup hierarchies of this host and where this process is in them.

use std::fs;
use std::path::{Path, PathBuf};

use super::cgroup::Controller;

/// The two interfaces of cgroups; both may be there at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    V1,
    V2,
}

/// One hierarchy as this process sees it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hierarchy {
    pub(super) version: Version,
    /// Its highest cgroup in sight.
    pub(super) top: PathBuf,
    /// The cgroup that this process is in.
    pub(super) own: PathBuf,
    /// Those of ours that it has.
    pub(super) controllers: Vec<Controller>,
}

impl Hierarchy {
    /// All that have one of our controllers; none where cgroups are not mounted.
    pub(super) fn all() -> Vec<Self> {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let mut found = of(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"));
        for hierarchy in &mut found {
            if hierarchy.version == Version::V2 {
                let controllers = hierarchy.top.join("cgroup.controllers");
                let words = fs::read_to_string(controllers).unwrap_or_default();
                hierarchy.controllers = among(words.split_whitespace());
            }
        }
        found.retain(|hierarchy| !hierarchy.controllers.is_empty());
        found
    }
}

fn among<'a>(words: impl Iterator<Item = &'a str> + Clone) -> Vec<Controller> {
    let named = |controller: &Controller| words.clone().any(|word| word == controller.word());
    Controller::ALL.into_iter().filter(named).collect()
}

/// From `/proc/self/mountinfo` and `/proc/self/cgroup`; what v2 has must be asked of itself.
fn of(mountinfo: &str, cgroup: &str) -> Vec<Hierarchy> {
    let mounts = mountinfo.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let [_, _, _, root, point, ..] = before.split(' ').collect::<Vec<_>>()[..] else {
            return None;
        };
        let [kind, _, options] = after.split(' ').collect::<Vec<_>>()[..] else { return None };
        let version = match kind {
            "cgroup" => Version::V1,
            "cgroup2" => Version::V2,
            _ => return None,
        };
        let controllers = match version {
            Version::V1 => among(options.split(',')),
            Version::V2 => Vec::new(),
        };
        let path = own_path(cgroup, version, &controllers)?;
        let own = Path::new(path).strip_prefix(root).ok()?;
        let top = PathBuf::from(point);
        Some(Hierarchy { version, own: top.join(own), top, controllers })
    });
    mounts.collect()
}

/// The path of this process in the hierarchy that has these controllers.
fn own_path<'a>(cgroup: &'a str, version: Version, controllers: &[Controller]) -> Option<&'a str> {
    cgroup.lines().find_map(|line| {
        let (number, rest) = line.split_once(':')?;
        let (names, path) = rest.split_once(':')?;
        let is_it = match version {
            Version::V1 => {
                !controllers.is_empty() && among(names.split(',')).as_slice() == controllers
            }
            Version::V2 => number == "0" && names.is_empty(),
        };
        is_it.then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_of_version_2_has_one_hierarchy() {
        let mounts = "30 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev shared:4 - cgroup2 cgroup2 rw,nsdelegate\n\
                      31 1 8:1 / / rw - ext4 /dev/sda1 rw";
        let found = of(mounts, "0::/system.slice/interpreterd.service\n");
        let top = PathBuf::from("/sys/fs/cgroup");
        let own = top.join("system.slice/interpreterd.service");
        let expected = Hierarchy { version: Version::V2, top, own, controllers: Vec::new() };
        assert_eq!(found, [expected]);
    }

    #[test]
    fn a_mixed_host_and_a_container_s_view_are_understood() {
        let mounts = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
                      35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro,nosuid master:9 - cgroup cgroup rw,memory\n\
                      40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";
        let own = "9:name=systemd:/\n4:memory:/docker/abc/job\n2:cpu,cpuacct:/\n0::/\n";
        let found: Vec<_> = of(mounts, own)
            .into_iter()
            .map(|it| (it.version, it.own.display().to_string(), it.controllers))
            .collect();
        let at = |path: &str| format!("/sys/fs/cgroup/{path}");
        assert_eq!(
            found,
            [
                (Version::V1, at("cpu/"), vec![Controller::Cpu]),
                (Version::V1, at("memory/job"), vec![Controller::Memory]),
                (Version::V2, at("unified/"), vec![]),
            ]
        );
    }

    #[test]
    fn no_cgroups_are_no_fault() {
        assert_eq!(of("", ""), []);
        assert_eq!(of("31 1 8:1 / / rw - ext4 /dev/sda1 rw", "0::/\n"), []);
    }
}
