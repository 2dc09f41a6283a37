//! Warm-ups, what is cached, evictions, and in which order a program opens its files: asked of a mount about paths.

use super::{
    Told,
    listen::{Asker, Paths},
};
use sluice_fuse::{Notifier, Session};
use sluice_vfs::{Vfs, WarmTo, Warmup};
use std::{sync::Arc, time::Duration};
use tokio::{sync::mpsc, time::timeout};

/// Between two lines.
const TELL_INTERVAL: Duration = Duration::from_millis(200);

/// Ends a warm-up whose asker went away before it was his no more.
struct Stopper(Option<Arc<Warmup>>);

impl Drop for Stopper {
    fn drop(&mut self) {
        self.0.iter().for_each(|warmup| warmup.stop());
    }
}

pub async fn warm(asker: Asker, vfs: &Arc<Vfs>, to: WarmTo, wait: bool) -> anyhow::Result<()> {
    let Asker { mut paths, mut teller } = asker;
    let (names, warmup) = vfs.warm(to);
    let mut stopper = Stopper(Some(warmup.clone()));
    let mut feeding = tokio::spawn(async move { feed(&mut paths, names).await });
    let (mut fed, mut last) = (false, false);
    while !last {
        if fed {
            tokio::time::sleep(TELL_INTERVAL).await;
        } else if let Ok(ended) = timeout(TELL_INTERVAL, &mut feeding).await {
            ended??;
            fed = true;
        }
        let numbers = warmup.numbers();
        last = fed && (numbers.over || !wait);
        teller.tell(&Told::Warming { numbers }).await?;
    }
    stopper.0 = None;
    Ok(())
}

async fn feed(paths: &mut Paths, names: mpsc::Sender<Vec<u8>>) -> anyhow::Result<()> {
    while let Some(path) = paths.next().await? {
        if names.send(path).await.is_err() {
            break;
        }
    }
    Ok(())
}

pub async fn held(mut asker: Asker, vfs: &Arc<Vfs>) -> anyhow::Result<()> {
    while let Some(path) = asker.paths.next().await? {
        let told = match vfs.held(&path).await {
            Ok(held) => Told::Held { held },
            Err(errno) => Told::Missed { error: errno.to_string() },
        };
        asker.tell(&told).await?;
    }
    Ok(())
}

pub async fn evict(mut asker: Asker, vfs: &Arc<Vfs>, mount: Option<&Session>) -> anyhow::Result<()> {
    let notifier = mount.map(Session::notifier);
    while let Some(path) = asker.paths.next().await? {
        let mut inos = Vec::new();
        let told = match vfs.evict(&path, |ino| inos.push(ino)).await {
            Ok(bytes) => Told::Evicted { bytes },
            Err(errno) => Told::Missed { error: errno.to_string() },
        };
        if let Some(notifier) = &notifier {
            forget(notifier, &inos).await;
        }
        asker.tell(&told).await?;
    }
    Ok(())
}

/// The kernel's pages go too: they would be read without us.
async fn forget(notifier: &Notifier, inos: &[sluice_base::Ino]) {
    for ino in inos {
        while notifier.inval_inode(ino.0, 0, 0) == Err(sluice_fuse::NotifyError::Full) {
            let _ = notifier.flush().await;
        }
    }
    let _ = notifier.flush().await;
}

pub async fn learn(mut asker: Asker, vfs: &Arc<Vfs>) -> anyhow::Result<()> {
    let mut named = Vec::new();
    while let Some(path) = asker.paths.next().await? {
        named.push(path);
    }
    let learning = vfs.note_openings();
    asker.tell(&Told::Learning).await?;
    // Nothing more is named: this ends when the other side is closed.
    let _ = asker.paths.next().await;
    for path in learning.named(vfs, &named).await? {
        asker.tell(&Told::Opened { path }).await?;
    }
    Ok(())
}
