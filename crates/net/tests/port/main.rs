//! Lanes for data over loopback: what comes is what was sent, however it is sent, and nothing is left under way.

mod calls;
mod rig;
mod trouble;
