//! `sluice bench net`.

use crate::{
    output::{note, out},
    units,
};
use anyhow::{Context, anyhow, bail};
use clap::Args;
use sluice_base::{Clock, SystemClock, limits::SEGMENT_BYTES};
use sluice_bench::net::{Case, Host, Line, Plan, draw, run as measure};
use std::{
    env,
    io::{BufRead, BufReader, Read},
    net::{SocketAddr, ToSocketAddrs},
    path::PathBuf,
    process::{Child, Command, ExitCode, Stdio},
    sync::Arc,
    time::Duration,
};

/// Read from nodes over TCP as mounts do, and see what each technique brings
///
/// Starts nodes with caches of random objects and reads from them: with everything that makes it fast (all), without any of it
/// (plain), and without one technique at a time (no-NAME). Every byte is compared with its CRC, but in `unchecked` and `no-splice`, which show
/// what becomes of bytes that nobody looks at. Beside each case stands the raw limit of the same moment: one TCP connection, sendfile to
/// read(2).
///
///   sluice bench net                          every case on this host, 4K, 128K and 1M
///
///   sluice bench net --case all,plain --block 1M --seconds 10
///
/// Over a network: start a node on another host, then name it here.
///
///   sluice bench net --serve 0.0.0.0:7000     on the other host
///
///   sluice bench net --host HOST:7000         here
///
/// `late`, `store-hangs`, `hot`, `uneven`, `drain`, `join` and what is compared with them read whole segments of 32K by way of a group of two
/// nodes: give --host twice.
///
/// Columns: lanes for large answers to each node, reads in flight, the rate as a part of the raw limit, seconds of processor time by GiB of
/// client and nodes, returns of epoll_wait by second and system calls by read of both, the time of a read; then what the technique is
/// counted by, for 1,000 reads, and what it was in the case that has it.
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct NetArgs {
    /// Cases: all, plain, no-multiplex, no-small-lanes, no-coalesce, no-batch, no-low-water, no-sendfile, no-combine, no-more-lanes,
    /// no-at-once; unchecked, no-splice; stalled, no-bound; late, no-hedge, no-cancel; store-hangs, no-deadlines; hot, no-second-owner;
    /// uneven, no-weights; drain, no-drain; join, no-previous
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = case)]
    case: Vec<Case>,
    /// Bytes of a read, 1 to 4M; several by comma
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = units::parse_size, default_value = "4K,128K,1M")]
    block: Vec<u64>,
    /// Lanes to each node, instead of as many as the traffic takes. Where a lane has one request at a time (plain, no-multiplex) as many
    /// as reads under way
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: Option<u16>,
    /// Reads under way at once: 64 below 64K, else 8
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    in_flight: Option<u16>,
    /// Time for each case
    #[arg(long, value_name = "N", default_value_t = 4.0)]
    seconds: f64,
    /// Bytes that a node has
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size, default_value = "512M")]
    size: u64,
    /// Read from these nodes, each started with --serve and the same --size
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',', conflicts_with = "serve")]
    host: Vec<String>,
    /// Be a node, until interrupted
    #[arg(long, value_name = "ADDRESS")]
    serve: Option<SocketAddr>,
    /// Where a node keeps its objects; removed at the end
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Ends with its standard input
    #[arg(long, hide = true)]
    child: bool,
    /// A picture of the table as SVG
    #[arg(long, value_name = "FILE")]
    chart: Option<PathBuf>,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

fn case(name: &str) -> Result<Case, String> {
    Case::find(name).ok_or_else(|| {
        let names: Vec<_> = Case::EVERY.iter().map(|case| case.name).collect();
        format!("there is no case `{name}`: choose from {}", names.join(", "))
    })
}

pub fn run(args: &NetArgs) -> anyhow::Result<ExitCode> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    if let Some(address) = args.serve {
        return serve(args, address, clock);
    }
    if !(0.1..=3600.0).contains(&args.seconds) {
        bail!("--seconds {} is not between 0.1 and 3600", args.seconds);
    }
    let plans = plans(args)?;
    let needed = plans.iter().map(|plan| plan.case.nodes()).max().unwrap_or(1);
    let (_nodes, hosts) = hosts(args, needed)?;
    let mut lines: Vec<Line> = Vec::new();
    for plan in plans {
        // Hosts that were named are all read from.
        let hosts = if args.host.is_empty() { &hosts[..plan.case.nodes()] } else { &hosts };
        let line = measure(&plan, hosts, &clock).with_context(|| format!("case {}", plan.case.name))?;
        if args.json {
            out!("{}", serde_json::to_string(&line)?);
        } else {
            if lines.is_empty() {
                head();
            }
            let is_base = |other: &&Line| other.case == plan.case.base && other.block_bytes == plan.block;
            show(&line, plan.case.counter, lines.iter().find(is_base));
        }
        lines.push(line);
    }
    if let Some(file) = &args.chart {
        draw(&lines, file)?;
        note!("the chart is in {}", file.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn plans(args: &NetArgs) -> anyhow::Result<Vec<Plan>> {
    let cases = if args.case.is_empty() { Case::EVERY.to_vec() } else { args.case.clone() };
    let mut plans = Vec::new();
    for block in &args.block {
        let block = usize::try_from(*block).unwrap_or(usize::MAX);
        if !(1..=4 << 20).contains(&block) {
            bail!("--block is 1 to 4M");
        }
        let usual = if block < 64 << 10 { 64 } else { 8 };
        for case in &cases {
            if case.group.is_some() && !block.is_multiple_of(SEGMENT_BYTES) {
                continue;
            }
            let in_flight = args.in_flight.map_or(usual, usize::from);
            let connections = args.connections.map(usize::from);
            let (connections, in_flight) = match (case.is_one_by_one(), connections) {
                (true, Some(connections)) => (Some(connections), connections),
                (true, None) => (Some(in_flight), in_flight),
                (false, connections) => (connections, in_flight),
            };
            let time = Duration::from_secs_f64(args.seconds);
            plans.push(Plan { case: case.clone(), block, connections, in_flight, time, host_bytes: args.size });
        }
    }
    if plans.is_empty() {
        bail!("{} read whole segments: give --block in multiples of 32K", of_groups());
    }
    Ok(plans)
}

/// The cases that need a group of nodes.
fn of_groups() -> String {
    let names: Vec<_> = Case::EVERY.iter().filter(|case| case.group.is_some()).map(|case| case.name).collect();
    names.join(", ")
}

/// A node that ends with this process.
struct Node(Child);

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn hosts(args: &NetArgs, needed: usize) -> anyhow::Result<(Vec<Node>, Vec<SocketAddr>)> {
    if !args.host.is_empty() {
        if args.host.len() < needed {
            bail!("{} nodes are named by --host, and {needed} are needed for {}", args.host.len(), of_groups());
        }
        let resolve = |host: &String| {
            let mut found = host.to_socket_addrs().with_context(|| format!("finding {host}"))?;
            found.next().ok_or_else(|| anyhow!("{host} has no address"))
        };
        return Ok((Vec::new(), args.host.iter().map(resolve).collect::<anyhow::Result<_>>()?));
    }
    let nodes = (0..needed).map(|_| start(args)).collect::<anyhow::Result<Vec<_>>>()?;
    Ok(nodes.into_iter().unzip())
}

/// Starts a node on this host.
fn start(args: &NetArgs) -> anyhow::Result<(Node, SocketAddr)> {
    let mut command = Command::new(env::current_exe().context("finding this program")?);
    command.args(["bench", "net", "--serve", "127.0.0.1:0", "--child", "--size", &args.size.to_string()]);
    if let Some(dir) = &args.dir {
        command.arg("--dir").arg(dir);
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("starting a node")?;
    let stdout = child.stdout.take().ok_or_else(|| anyhow!("a node without output"))?;
    let node = Node(child);
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    let address = line.trim().parse().map_err(|_| anyhow!("the node did not start"))?;
    Ok((node, address))
}

fn serve(args: &NetArgs, address: SocketAddr, clock: Arc<dyn Clock>) -> anyhow::Result<ExitCode> {
    let dir = match &args.dir {
        Some(dir) => tempfile::Builder::new().prefix("sluice-bench-net.").tempdir_in(dir),
        None => tempfile::Builder::new().prefix("sluice-bench-net.").tempdir(),
    };
    let dir = dir.context("making a directory for the objects")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let host = Host::start(dir.path(), args.size, address, clock, runtime.handle().clone())
        .with_context(|| format!("being a node at {address}"))?;
    if args.child {
        out!("{}", host.address());
        crate::output::finish()?;
        let _ = std::io::stdin().read(&mut [0]);
    } else {
        note!("a node for `sluice bench net --host` listens at {}, and at any port for each case", host.address());
        runtime.block_on(crate::running::stop_on_signals())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn head() {
    out!(
        "{:<15} {:>6} {:>5} {:>6} {:>7} {:>9} {:>7} {:>15} {:>9} {:>7} {:>8} {:>8}  {}",
        "case",
        "block",
        "lanes",
        "flight",
        "GB/s",
        "reads/s",
        "of raw",
        "CPU s/GiB c, n",
        "wakes/s",
        "calls",
        "p50 us",
        "p99 us",
        "by 1,000 reads"
    );
}

fn show(line: &Line, counter: &str, base: Option<&Line>) {
    let block = if line.block_bytes.is_multiple_of(1 << 20) {
        format!("{}M", line.block_bytes >> 20)
    } else if line.block_bytes.is_multiple_of(1 << 10) {
        format!("{}K", line.block_bytes >> 10)
    } else {
        line.block_bytes.to_string()
    };
    let count = |line: &Line| line.counts.get(counter).copied().unwrap_or(0.0);
    let counted = match base {
        Some(base) => format!("{counter} {:.0} ({}: {:.0})", count(line), base.case, count(base)),
        None => format!("{counter} {:.0}", count(line)),
    };
    out!(
        "{:<15} {:>6} {:>5} {:>6} {:>7.2} {:>9.0} {:>7.2} {:>7.3} {:>7.3} {:>9.0} {:>7.2} {:>8.0} {:>8.0}  {counted}",
        line.case,
        block,
        line.connections,
        line.in_flight,
        line.gbps,
        line.iops,
        line.gbps / line.raw_limit_gbps,
        line.client_cpu_s_per_gib,
        line.node_cpu_s_per_gib,
        line.wakeups_per_s,
        line.syscalls_per_request,
        line.p50_us,
        line.p99_us
    );
}
