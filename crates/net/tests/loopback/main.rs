//! Client and server over loopback, and peers that keep no rules.

mod calls;
mod hostile;
mod restart;
mod rig;
