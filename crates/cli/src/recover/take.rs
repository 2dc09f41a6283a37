//! The journal of a mount that is gone, taken over as the next mount with it would, without a mount.

use super::list::{command, told};
use crate::{
    control::{DrainWatch, TELL_INTERVAL},
    directory,
    mount::{
        kept::{self, Record},
        open::{AtWork, Opening, Reached, Runtimes},
    },
    output::{note, out},
    progress::Progress,
    running::stop_on_signals,
    takeover::are_one,
    tier::Tier,
    units::{show_size, show_time},
    volume::{self, OpenOptions, check_store, journal_bytes_at_least},
};
use anyhow::{Context, anyhow, bail};
use sluice_join::{KEEP_INTERVAL, NoKernel, Reporter, keep};
use sluice_run::task;
use std::{
    path::{Path, PathBuf},
    process::exit,
    sync::Arc,
    time::Duration,
};

/// How journals are taken over.
pub struct Taking<'a> {
    /// The server.
    pub meta: &'a str,
    /// The volume that it serves.
    pub volume: &'a str,
    /// Where the cache is, if not where the mount had it.
    pub cache: Option<PathBuf>,
    pub takes_damaged: bool,
}

impl Taking<'_> {
    /// Publishes and stores what is left in `dir`, and ends its session.
    pub fn take(&self, dir: &Path, runtimes: &Runtimes) -> anyhow::Result<()> {
        if !dir.is_dir() {
            bail!("{} is not there: is its disk mounted?", dir.display());
        }
        let config = directory::load(dir)?;
        let config = config.ok_or_else(|| anyhow!("{} holds no journal of a mount", dir.display()))?;
        if config.id != self.volume {
            bail!(
                "{} has the journal of a mount of volume {}, {} has volume {}: nothing was touched",
                dir.display(),
                config.id,
                self.meta,
                self.volume
            );
        }
        let record = Record::load(dir);
        let options = self.options(dir, record.as_ref())?;
        let lock = options.lock(dir).context("a mount that is alive publishes and stores by itself what it has")?;
        let looked = volume::look(dir, config.id()?);
        let (left, bytes) = looked.with_context(|| format!("nothing was touched; keep a copy of {}", dir.display()))?;
        if left.is_nothing() && left.session.is_none() {
            kept::forget(&config.id, dir);
            out!("nothing to recover in {}", dir.display());
            return Ok(());
        }
        let at = record.as_ref().map_or(dir, |record| &record.mountpoint).display().to_string();
        let reached = Reached::connect(self.meta, &at, runtimes)?;
        if reached.config.id != config.id {
            bail!("{} serves volume {} by now, not {}", self.meta, reached.config.id, config.id);
        }
        runtimes.io.block_on(check_store(&reached.config, dir))?;
        note!("taking {} over: {}", dir.display(), told(&left, bytes));
        let again = command(self.meta, dir);
        let opening = Opening {
            dir,
            options,
            upload_delay: Duration::ZERO,
            tier: Tier::Journal,
            name: &at,
            takes_damaged: self.takes_damaged,
            inherited: None,
        };
        let work = AtWork::begin(opening, &reached, &runtimes.io, lock);
        let work =
            work.with_context(|| format!("what was acked is still in {}; `{again}` tries again", dir.display()))?;
        let rest = self.drain(work, &reached, runtimes)?;
        if !rest.is_nothing() {
            let (changes, objects) = (rest.changes, rest.objects.len());
            bail!("{changes} changes and {objects} objects are left in {}: `{again}` goes on", dir.display());
        }
        kept::forget(&config.id, dir);
        out!("recovered  {}: all of it is published and stored", dir.display());
        Ok(())
    }

    /// As the mount had them, with room to end.
    fn options(&self, dir: &Path, record: Option<&Record>) -> anyhow::Result<OpenOptions> {
        let usual = OpenOptions::default();
        let cache_of_record = record.map(|record| record.cache.clone());
        if let (Some(given), Some(Some(had))) = (&self.cache, &cache_of_record)
            && had.is_dir()
            && !are_one(given, had)
        {
            bail!("what is not stored may lie in {}, the cache that the mount had: leave --cache out", had.display());
        }
        let of_default = || Some(dir.join("cache"));
        let cache = self.cache.clone().or_else(|| cache_of_record.unwrap_or_else(of_default));
        let cache = cache.filter(|cache| cache.is_dir());
        if self.cache.is_some() && cache.is_none() {
            bail!("--cache names no directory");
        }
        let room = record.map_or(usual.journal_bytes, |record| record.journal_bytes);
        let cache_room = record.map(|record| record.cache_bytes).filter(|bytes| *bytes > 0);
        Ok(OpenOptions {
            cache_bytes: if cache.is_some() { cache_room.unwrap_or(usual.cache_bytes) } else { 0 },
            journal_bytes: room.max(journal_bytes_at_least(dir)),
            cache_dir: cache,
            ..usual
        })
    }

    /// Stores everything and ends the session; what is left then.
    fn drain(&self, work: AtWork, reached: &Reached, runtimes: &Runtimes) -> anyhow::Result<sluice_vfs::remote::Left> {
        let Reached { client, callbacks, .. } = reached;
        let (vfs, metadata, session) = (work.running.vfs.clone(), work.metadata.clone(), work.session);
        // Others read from here what is not stored yet.
        callbacks.start(&metadata, &vfs, Arc::new(NoKernel), task::handle(runtimes.io.handle()));
        let keeping = runtimes.io.spawn(keep(metadata.clone(), KEEP_INTERVAL));
        let (of, told, reported) = (client.clone(), metadata.clone(), vfs.clone());
        let reporting = runtimes.io.spawn(async move { Reporter::default().run(&of, session, &told, &reported).await });
        runtimes.io.block_on(async {
            let store = vfs.store();
            let connected = tokio::spawn(async move { store.keep_connected().await });
            let mut drain = std::pin::pin!(vfs.drain());
            let (mut watch, mut progress) = (DrainWatch::default(), Progress::new());
            while tokio::time::timeout(TELL_INTERVAL, &mut drain).await.is_err() {
                let (objects, bytes) = watch.look(&vfs);
                let trouble = vfs.namespace().trouble().or_else(|| watch.trouble(&vfs));
                progress.show(&format!("storing {} in {objects} objects", show_size(bytes)), trouble);
            }
            progress.finish();
            connected.abort();
        });
        keeping.abort();
        let left = work.end()?;
        reporting.abort();
        Ok(left)
    }
}

/// Ends the process when that is wanted, or after `timeout`. It is as if it were killed, which loses nothing acked.
pub async fn end_early(timeout: Option<Duration>) {
    let limit = async {
        match timeout {
            Some(timeout) => tokio::time::sleep(timeout).await,
            None => std::future::pending().await,
        }
    };
    let why = tokio::select! {
        stopped = stop_on_signals() => match stopped {
            Ok(()) => "ended early".into(),
            Err(error) => return note!("{error:#}"),
        },
        () = limit => format!("not done within {}", show_time(timeout.unwrap_or_default())),
    };
    note!("{why}: what is left is still in the journal, and the same command goes on with it");
    exit(1);
}

/// A directory as it is named for `sluice mount`, `DIR:SIZE`, or by itself.
pub fn without_size(text: &Path) -> PathBuf {
    let dir = std::path::absolute(text).unwrap_or_else(|_| text.to_path_buf());
    if dir.is_dir() {
        return dir;
    }
    let sized = text.to_str().and_then(|text| crate::mount::sized(text, "--journal").ok());
    sized.map(|(dir, _)| dir).filter(|sized| sized.is_dir()).unwrap_or(dir)
}
