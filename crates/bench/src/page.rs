//! Common parts of the pages of measurements.

use procfs::Current as _;

use podops_test_programs::Programs;

/// Returns a sentence about a page that a command writes: the date and the machine of its
/// measurements.
pub(crate) fn conditions(command: &str) -> anyhow::Result<String> {
    #[allow(clippy::disallowed_methods, reason = "the page states the date of the measurement")]
    let date = jiff::Timestamp::now().strftime("%Y-%m-%d");
    let memory = procfs::Meminfo::current()?.mem_total >> 30;
    let cores = std::thread::available_parallelism()?;
    let server = Programs::find()?.apiserver_version()?;
    Ok(format!(
        "Written by `cargo xtask {command}` on {date}, on a machine with {cores} cores and {memory} GiB that \
         runs etcd, kube-apiserver {server}, fake nodes and release builds of the operators."
    ))
}
