//! A scrub that somebody asked for: begun, and told of until it is over.

use super::{Told, listen::Asker};
use sluice_store::Cache;
use sluice_vfs::ScrubNumbers;
use std::time::Duration;

/// Between two lines.
const TELL_INTERVAL: Duration = Duration::from_millis(200);

/// The scrub goes on when the asker goes away.
pub async fn answer(asker: &mut Asker, cache: Option<&Cache>, rate: u64) -> anyhow::Result<()> {
    let begun = cache.and_then(|cache| Some((cache, cache.scrub_now(rate)?)));
    let Some((cache, pass)) = begun else {
        return asker.tell(&Told::Failed { error: "it has no cache disk: there is nothing to scrub".into() }).await;
    };
    loop {
        tokio::time::sleep(TELL_INTERVAL).await;
        let Some(status) = cache.scrub_status() else { return Ok(()) };
        let (over, held_bytes) = (status.passes >= pass, cache.stats().clean_bytes);
        let scrub = Box::new(ScrubNumbers::from(status));
        asker.tell(&Told::Scrub { scrub, held_bytes, over }).await?;
        if over {
            return Ok(());
        }
    }
}
