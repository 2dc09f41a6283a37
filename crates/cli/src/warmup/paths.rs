//! PATHs of a mount, as commands name them: as arguments, from a file, from standard input.

use crate::{
    control::{Ask, Control, Told},
    mounts::{self, Found},
    output::note,
    units::quoted,
};
use anyhow::{Context, anyhow, bail};
use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, BufRead, BufReader},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

#[derive(clap::Args)]
pub struct PathArgs {
    /// Files and directories of one mount; directories with all that is below them
    #[arg(value_name = "PATH", required_unless_present = "from")]
    pub paths: Vec<OsString>,
    /// Read further paths from FILE, one a line, - for standard input
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
}

type Lines = Box<dyn Iterator<Item = io::Result<Vec<u8>>> + Send>;

/// Paths of one mount, and the process that serves it.
pub struct Named {
    pub mount: Found,
    names: Mutex<Box<dyn Iterator<Item = io::Result<OsString>> + Send>>,
    failed: AtomicU64,
}

impl Named {
    /// The mount is that of the first path.
    pub fn find(args: &PathArgs) -> anyhow::Result<Self> {
        let lines: Lines = match &args.from {
            None => Box::new(io::empty().split(b'\n')),
            Some(path) if path == Path::new("-") => Box::new(BufReader::new(io::stdin()).split(b'\n')),
            Some(path) => {
                let file = File::open(path).with_context(|| format!("opening the list {}", path.display()))?;
                Box::new(BufReader::new(file).split(b'\n'))
            }
        };
        let lines =
            lines.filter(|line| !line.as_ref().is_ok_and(Vec::is_empty)).map(|line| line.map(OsString::from_vec));
        let mut names = args.paths.clone().into_iter().map(Ok).chain(lines).peekable();
        let first = match names.peek() {
            Some(Ok(first)) => first.clone(),
            Some(Err(error)) => bail!("reading the list: {error}"),
            None => bail!("the list names no path"),
        };
        let whole = Path::new(&first).canonicalize().with_context(|| first.to_string_lossy().into_owned())?;
        let mount = mounts::above(&whole).ok_or_else(|| {
            anyhow!(
                "{} is in no mount of sluice: name files as programs see them, below the mount point",
                whole.display()
            )
        })?;
        Ok(Self { mount, names: Mutex::new(Box::new(names)), failed: AtomicU64::new(0) })
    }

    /// The process that serves the mount.
    pub fn control(&self) -> anyhow::Result<Control> {
        let at = &self.mount.at;
        let control = Control::connect(&self.mount.dir).with_context(|| {
            format!("asking the process of {}: only the user who mounted it, or root, may", at.display())
        })?;
        control.ok_or_else(|| {
            anyhow!("the process of {} is gone: `sluice umount {}`, then mount it again", at.display(), quoted(at))
        })
    }

    /// Paths that could not be named to the mount; each was told of.
    pub fn failed(&self) -> u64 {
        self.failed.load(Relaxed)
    }

    /// The paths from the root of the volume, once, each handed to `each` as it was named. What cannot be found is told of and left out.
    pub fn within(&self, mut each: impl FnMut(&OsStr) + Send) -> impl Iterator<Item = Vec<u8>> + Send {
        std::iter::from_fn(move || {
            loop {
                let name = self.names.lock().ok()?.next()?;
                match name.map_err(anyhow::Error::from).and_then(|name| Ok((self.below(&name)?, name))) {
                    Ok((path, name)) => {
                        each(&name);
                        return Some(path);
                    }
                    Err(error) => {
                        self.failed.fetch_add(1, Relaxed);
                        note!("{error:#}");
                    }
                }
            }
        })
    }

    fn below(&self, name: &OsStr) -> anyhow::Result<Vec<u8>> {
        let shown = || name.to_string_lossy().into_owned();
        let whole = Path::new(name).canonicalize().with_context(shown)?;
        let below = whole.strip_prefix(&self.mount.at);
        let below = below.map_err(|_| anyhow!("{} is not in the mount {}", shown(), self.mount.at.display()))?;
        // An empty path would end the list.
        Ok(if below.as_os_str().is_empty() { b".".to_vec() } else { below.as_os_str().as_bytes().to_vec() })
    }

    /// Asks about each path, and hands it with its answer to `each`.
    pub fn ask_each(&self, ask: Ask, mut each: impl FnMut(&str, Told)) -> anyhow::Result<()> {
        let sent = Mutex::new(VecDeque::new());
        let note = |name: &OsStr| {
            if let Ok(mut sent) = sent.lock() {
                sent.push_back(name.to_string_lossy().into_owned());
            }
        };
        self.control()?.ask_about(ask, self.within(note), |told| {
            let name = sent.lock().ok().and_then(|mut sent| sent.pop_front()).unwrap_or_default();
            each(&name, told);
            Ok(true)
        })?;
        match sent.lock().ok().and_then(|mut sent| sent.pop_front()) {
            Some(name) => bail!("the mount ended before it came to {name}"),
            None => Ok(()),
        }
    }
}
