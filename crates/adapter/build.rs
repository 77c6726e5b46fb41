//! Generates the messages, the client and the server from the protocol's `.proto` file.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["proto/consist_adapter_v1.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .type_attribute(".", "#[derive(serde::Serialize, serde::Deserialize)]")
        .type_attribute(".", "#[serde(rename_all = \"camelCase\", default)]")
        .compile_fds(files)?;
    Ok(())
}
