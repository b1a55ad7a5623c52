//! Link settings of the shared library, and the CUDA kernels: `kernels/*.cu` become compressed fatbins that the library embeds.
//!
//! The shared library's SONAME follows the ABI number, and it stays mapped until the process ends. nvcc is looked for in `NVCC`, `CUDA_HOME`,
//! `.cuda/` (filled by `make cuda`) and `PATH`; without one the library is built without kernels. `SEGNO_CUDA_ARCH` lists the targets, as in
//! the default `sm_90,compute_90`: machine code for `sm_`, code that the driver compiles when it loads for `compute_`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const DEFAULT_ARCH: &str = "sm_90,compute_90";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libsegno.so.0");
    // Worker threads may still be leaving when a host closes the library.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    if env::var_os("CARGO_FEATURE_CUDA").is_some() {
        embed_kernels();
    }
}

fn embed_kernels() {
    println!("cargo::rerun-if-changed=kernels");
    for variable in ["NVCC", "CUDA_HOME", "SEGNO_CUDA_ARCH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let mut table = String::from("pub const MODULES: &[(&str, &[u8])] = &[\n");
    match find_nvcc() {
        Some(nvcc) => {
            for source in sources() {
                let name = source.file_stem().expect("a source has a name").to_string_lossy().into_owned();
                let fatbin = out.join(format!("{name}.fatbin"));
                compile(&nvcc, &source, &fatbin);
                table += &format!("    ({name:?}, include_bytes!({fatbin:?})),\n");
            }
        }
        None => {
            println!("cargo::warning=nvcc was not found: the library is built without cuda kernels (see `make cuda`)")
        }
    }
    fs::write(out.join("kernels.rs"), table + "];\n").expect("OUT_DIR can be written");
}

fn sources() -> Vec<PathBuf> {
    let entries = fs::read_dir("kernels").expect("the folder of the kernels");
    let paths = entries.map(|entry| entry.expect("an entry of the folder").path());
    let mut sources: Vec<PathBuf> = paths.filter(|path| path.extension().is_some_and(|ext| ext == "cu")).collect();
    sources.sort();
    sources
}

fn find_nvcc() -> Option<PathBuf> {
    let named = env::var_os("NVCC").map(PathBuf::from);
    let home = env::var_os("CUDA_HOME").map(|home| Path::new(&home).join("bin/nvcc"));
    let local = Some(PathBuf::from(".cuda/nvidia/cu13/bin/nvcc"));
    let found = env::var_os("PATH").unwrap_or_default();
    let on_path = env::split_paths(&found).map(|folder| folder.join("nvcc"));
    [named, home, local].into_iter().flatten().chain(on_path).find(|path| path.is_file())
}

/// Compiles one file and refuses kernels that spill registers or keep arrays in local memory.
fn compile(nvcc: &Path, source: &Path, fatbin: &Path) {
    let mut command = Command::new(nvcc);
    command.args(["-fatbin", "-O3", "-std=c++17", "-Xptxas", "-v", "-Xfatbin", "-compress-all"]);
    let targets = env::var("SEGNO_CUDA_ARCH").unwrap_or_else(|_| DEFAULT_ARCH.into());
    for target in targets.split(',') {
        let number = target.trim_start_matches("sm_").trim_start_matches("compute_");
        command.arg(format!("-gencode=arch=compute_{number},code={target}"));
    }
    let output = command.arg(source).arg("-o").arg(fatbin).output().expect("nvcc can be started");
    let report = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "nvcc failed on {}:\n{report}", source.display());
    let uses_stack =
        |line: &&str| line.contains("bytes stack frame") && !line.trim().starts_with("0 bytes stack frame, 0 ");
    if let Some(line) = report.lines().find(uses_stack) {
        panic!("a kernel of {} uses local memory: {}\n{report}", source.display(), line.trim());
    }
}
