//! How a mount answers the kernel: settings of `up` and `mount`.

use sluice_fuse::{Config, RingOptions, Transfer};
use sluice_vfs::direct::Verify;

/// What the defaults are good for: a mount whose disks and memory are trusted as little as the network.
#[derive(clap::Args, Clone, Debug)]
pub struct ReadingArgs {
    /// What is checked of bytes that a program reads from a cache: `full`, all of them; `sampled`, one read in 64; `off`, none. With
    /// `sampled` and `off` the kernel can take the bytes without a copy, and corrupt bytes can reach a program
    #[arg(long, value_enum, default_value_t = VerifyArg::Full, value_name = "WHAT")]
    verify: VerifyArg,
    /// How the bytes of a read go to the kernel: `splice`, by reference, where --verify lets them go unchecked; `copy`; `auto`, spliced
    /// from 32 KiB on
    #[arg(long = "io", value_enum, default_value_t = IoArg::Auto, value_name = "HOW")]
    io: IoArg,
    /// Threads that answer the kernel, 2 to 64; default: two for each core up to 8, a fourth of the cores from 32 on, at most 16, and 8
    /// at least where the volume is served by another process, of which only as many as there are cores work unless some wait for it; with
    /// --fuse-transport uring, one for each core up to 16
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=64))]
    reactors: Option<u16>,
    /// How requests come from the kernel: `dev`, read from /dev/fuse; `uring`, by io_uring, one queue for each core, which saves
    /// system calls but not the copy of what is read (--io counts for `dev` alone). Needs Linux 6.14 and root's consent, once:
    /// echo Y > /sys/module/fuse/parameters/enable_uring. Without them the mount warns and takes /dev/fuse
    #[arg(long, value_enum, default_value_t = TransportArg::Dev, value_name = "HOW")]
    fuse_transport: TransportArg,
    /// With `uring`, requests of one core's programs under way at once, 1 to 1024; further ones wait in the kernel, and half of them may
    /// wait for locks, further ones fail (ENOLCK). Each has 1 MiB of address space, resident once it was used
    #[arg(long, default_value_t = RingOptions::default().depth, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    uring_depth: u16,
    /// Keep each of these threads on one core: for hosts that do little else than read
    #[arg(long)]
    pin: bool,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum VerifyArg {
    Full,
    Sampled,
    Off,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum TransportArg {
    Dev,
    Uring,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum IoArg {
    Auto,
    Splice,
    Copy,
}

/// Reactors of a mount of a served volume at least, all but one of which may wait for the server at once.
const REACTORS_OF_SERVED: usize = 8;

impl ReadingArgs {
    /// What is checked.
    pub fn verify(&self) -> Verify {
        match self.verify {
            VerifyArg::Full => Verify::Full,
            VerifyArg::Sampled => Verify::Sampled,
            VerifyArg::Off => Verify::Off,
        }
    }

    /// Whether requests are to come by io_uring.
    pub fn wants_rings(&self) -> bool {
        self.fuse_transport == TransportArg::Uring
    }

    /// `config` with these settings, for a mount of a volume of this process, or `served` by another one.
    pub fn put_into(&self, config: Config, served: bool) -> Config {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = self.reactors.map(usize::from);
        let ring = self.wants_rings().then_some(RingOptions { depth: self.uring_depth, threads });
        // Those that have a ring do not wait for the server; where there will be none, these are the ones.
        let usual = served.then(|| Config::reactors_for(cores).max(REACTORS_OF_SERVED));
        let transfer = match self.io {
            IoArg::Auto => Transfer::Auto,
            IoArg::Splice => Transfer::Splice,
            IoArg::Copy => Transfer::Copy,
        };
        // Beyond the cores there are those that take the place of others which wait for the server.
        let steady = if self.reactors.is_none() { usual.map(|usual| cores.clamp(2, usual)) } else { None };
        Config { reactors: threads.or(usual), steady, ring, pin: self.pin, transfer, ..config }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        reading: ReadingArgs,
    }

    fn config(options: &[&str], served: bool) -> Config {
        let command = Command::parse_from(["sluice"].iter().chain(options));
        command.reading.put_into(Config::default(), served)
    }

    /// To be survived: rings are asked for, and the kernel gives none.
    #[test]
    fn without_rings_a_served_volume_has_its_usual_threads() {
        let plain = config(&[], true);
        let rings = config(&["--fuse-transport", "uring"], true);
        assert!(plain.reactors >= Some(REACTORS_OF_SERVED) && plain.steady.is_some());
        assert_eq!((rings.reactors, rings.steady), (plain.reactors, plain.steady));
        assert_eq!(
            (rings.ring.map(|ring| ring.threads), plain.ring.is_none()),
            (Some(None), true),
            "rings: by the cores"
        );
        assert_eq!(config(&["--fuse-transport", "uring"], false).reactors, None);
        let told = config(&["--fuse-transport", "uring", "--reactors", "3"], true);
        assert_eq!((told.reactors, told.ring.and_then(|ring| ring.threads), told.steady), (Some(3), Some(3), None));
    }
}
