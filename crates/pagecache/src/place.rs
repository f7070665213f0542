//! The directory that test files lie in: whether page cache and direct I/O can be compared there.
//!
//! Sources: statfs(2) for the file systems' magic numbers, sysfs's `dev/block` for devices, proc_pid_mountinfo(5).

use crate::{Refused, Unsupported};
use anyhow::{Context, Result};
use nix::sys::stat::{major, makedev, minor};
use nix::sys::statfs::{statfs, FsType, TMPFS_MAGIC};
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A directory on a disk, checked.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its absolute path.
    pub directory: PathBuf,
    /// The device as `/proc/diskstats` names it: a disk or a partition of one.
    pub device: String,
    /// Major and minor number of the whole disk.
    pub disk: (u32, u32),
}

const RAMFS_MAGIC: FsType = FsType(0x8584_58f6);

#[repr(align(4096))]
struct Block([u8; 4096]);

impl Place {
    /// Examines `directory`.
    ///
    /// # Errors
    /// [`Refused`] if it cannot be used at all, [`Unsupported`] if there is no disk or no direct I/O behind it.
    pub fn examine(directory: &Path) -> Result<Place> {
        let name = directory.display();
        let refused = |what: String| Refused(format!("--dir {name}: {what}"));
        let directory = directory.canonicalize().map_err(|error| {
            refused(format!("{error}; name a directory on the disk that is to be measured"))
        })?;
        let metadata = fs::metadata(&directory).map_err(|error| refused(error.to_string()))?;
        if !metadata.is_dir() {
            return Err(refused(
                "it is no directory; test files are made in one, on the disk to be measured".into(),
            )
            .into());
        }
        let kind = statfs(&directory).map_err(|error| refused(error.desc().into()))?.filesystem_type();
        if [TMPFS_MAGIC, RAMFS_MAGIC].contains(&kind) {
            return Err(Unsupported(format!(
                "{name} lies in memory (tmpfs): its files are page cache themselves, direct I/O has nothing to go to. \
                 Name a directory on a disk with --dir"
            ))
            .into());
        }
        let number = block_device(metadata.dev()).ok_or_else(|| {
            Unsupported(format!(
                "{name} lies on no block device of this machine (as NFS and some overlays do): name a directory on a \
                 disk with --dir"
            ))
        })?;
        let (device, disk) = names(number).with_context(|| format!("cannot find the disk of {name}"))?;
        let place = Place { directory, device, disk };
        place.try_direct()?;
        Ok(place)
    }

    /// Bytes that this user may still write there.
    ///
    /// # Errors
    /// When the file system does not say.
    pub fn free_bytes(&self) -> Result<u64> {
        let said = statfs(&self.directory).context("cannot ask for free space")?;
        Ok(said.blocks_available() * said.block_size() as u64)
    }

    /// Checks that `bytes` more fit, leaving a little for others.
    ///
    /// # Errors
    /// [`Refused`] if they do not.
    pub fn must_fit(&self, bytes: u64) -> Result<()> {
        const SPARE: u64 = 64 << 20;
        let free = self.free_bytes()?;
        if bytes > 0 && bytes + SPARE > free {
            return Err(Refused(format!(
                "the test files need {} MiB more in {}, where {} MiB are free: make room, name another directory with \
                 --dir, or use --scale 1/16 or --quick",
                (bytes + SPARE) >> 20,
                self.directory.display(),
                free >> 20
            ))
            .into());
        }
        Ok(())
    }

    fn try_direct(&self) -> Result<()> {
        let name = self.directory.display();
        let file = tempfile::NamedTempFile::new_in(&self.directory)
            .map_err(|error| Refused(format!("--dir {name}: cannot write there: {error}")))?;
        let attempt = || -> std::io::Result<()> {
            let mut block = Block([7; 4096]);
            let mut open = OpenOptions::new();
            open.read(true).write(true).custom_flags(libc::O_DIRECT);
            open.open(file.path())?.write_all(&block.0)?;
            open.open(file.path())?.read_exact(&mut block.0)
        };
        attempt().map_err(|error| match error.kind() {
            ErrorKind::InvalidInput | ErrorKind::Unsupported => Unsupported(format!(
                "the file system of {name} has no direct I/O (O_DIRECT), so nothing can be compared with the page cache: \
                 name a directory on ext4 or xfs with --dir"
            ))
            .into(),
            _ => anyhow::Error::from(error).context(format!("cannot try direct I/O in {name}")),
        })
    }
}

/// The block device behind the device number of a file: itself, or the source of the mount where the file system has
/// numbers of its own (btrfs, overlay).
fn block_device(number: u64) -> Option<u64> {
    if sysfs(number).exists() {
        return Some(number);
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let source = mount_source(&mounts, number)?;
    let device = fs::metadata(source).ok()?.rdev();
    sysfs(device).exists().then_some(device)
}

fn sysfs(number: u64) -> PathBuf {
    format!("/sys/dev/block/{}:{}", major(number), minor(number)).into()
}

fn mount_source(mountinfo: &str, number: u64) -> Option<&str> {
    let wanted = format!("{}:{}", major(number), minor(number));
    mountinfo.lines().find_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        (mount.split(' ').nth(2)? == wanted).then(|| source.split(' ').nth(1)).flatten()
    })
}

/// The name of a device, and the number of the disk that it is or lies on.
fn names(number: u64) -> Result<(String, (u32, u32))> {
    let path = sysfs(number).canonicalize()?;
    let device = path.file_name().context("it has no name")?.to_string_lossy().into_owned();
    let whole =
        if path.join("partition").exists() { path.parent().context("it has no disk")? } else { &path };
    let text = fs::read_to_string(whole.join("dev"))?;
    let (above, below) = text.trim().split_once(':').context("it has no number")?;
    let disk = makedev(above.parse()?, below.parse()?);
    Ok((device, (major(disk) as u32, minor(disk) as u32)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_of_a_mount_is_found_by_its_number() {
        let text = "28 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
                    30 28 0:45 /sub /data rw shared:1 - btrfs /dev/sdb1 rw,subvol=/sub\n";
        assert_eq!(mount_source(text, makedev(0, 45)), Some("/dev/sdb1"));
        assert_eq!(mount_source(text, makedev(254, 0)), Some("/dev/vda"));
        assert_eq!(mount_source(text, makedev(0, 46)), None);
    }

    #[test]
    fn a_file_and_a_missing_directory_are_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let say = |path: &Path| Place::examine(path).unwrap_err().downcast::<Refused>().unwrap().0;
        assert!(say(file.path()).contains("it is no directory"));
        assert!(say(&file.path().join("x")).contains("Not a directory"));
        assert!(say(Path::new("/nowhere/at/all")).contains("No such file"));
    }

    #[test]
    fn memory_is_no_disk() {
        let error = Place::examine(Path::new("/dev/shm")).unwrap_err();
        assert!(error.downcast::<Unsupported>().unwrap().0.contains("lies in memory (tmpfs)"));
    }

    #[test]
    fn too_little_space_is_said_with_the_remedy() {
        let place = Place { directory: "/".into(), device: "x".into(), disk: (0, 0) };
        let error = place.must_fit(1 << 60).unwrap_err().downcast::<Refused>().unwrap();
        assert!(error.0.contains("--scale 1/16"), "{error}");
        place.must_fit(0).unwrap();
    }
}
