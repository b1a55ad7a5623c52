//! What the processor is called, from Linux's description of it. It asks the system nothing itself.

use super::field;

/// The processor of a `/proc/cpuinfo`: its maker's name for it, where that is told. On ARM the system tells numbers of the cores instead, of
/// which there may be several kinds; they are named in the order of the file.
pub(super) fn name(cpuinfo: &str) -> Option<String> {
    if let Some(name) = field(cpuinfo, "model name") {
        return Some(name.to_owned());
    }
    let mut cores: Vec<String> = Vec::new();
    for text in cpuinfo.split("\n\n") {
        let number = |name| u32::from_str_radix(field(text, name)?.strip_prefix("0x")?, 16).ok();
        if let (Some(implementer), Some(part)) = (number("CPU implementer"), number("CPU part")) {
            let core = core_name(implementer, part);
            if !cores.contains(&core) {
                cores.push(core);
            }
        }
    }
    (!cores.is_empty()).then(|| cores.join(" and "))
}

fn core_name(implementer: u32, part: u32) -> String {
    match CORES.iter().find(|core| (core.0, core.1) == (implementer, part)) {
        Some((_, _, name)) => (*name).to_owned(),
        None => format!("ARM core {part:#05x} of implementer {implementer:#04x}"),
    }
}

/// Implementer and part in the main identification register (MIDR_EL1), and what the maker calls the core, from the makers' reference manuals.
const CORES: [(u32, u32, &str); 35] = [
    (0x41, 0xd03, "Cortex-A53"),
    (0x41, 0xd04, "Cortex-A35"),
    (0x41, 0xd05, "Cortex-A55"),
    (0x41, 0xd07, "Cortex-A57"),
    (0x41, 0xd08, "Cortex-A72"),
    (0x41, 0xd09, "Cortex-A73"),
    (0x41, 0xd0a, "Cortex-A75"),
    (0x41, 0xd0b, "Cortex-A76"),
    (0x41, 0xd0c, "Neoverse N1"),
    (0x41, 0xd0d, "Cortex-A77"),
    (0x41, 0xd0e, "Cortex-A76AE"),
    (0x41, 0xd40, "Neoverse V1"),
    (0x41, 0xd41, "Cortex-A78"),
    (0x41, 0xd42, "Cortex-A78AE"),
    (0x41, 0xd44, "Cortex-X1"),
    (0x41, 0xd46, "Cortex-A510"),
    (0x41, 0xd47, "Cortex-A710"),
    (0x41, 0xd48, "Cortex-X2"),
    (0x41, 0xd49, "Neoverse N2"),
    (0x41, 0xd4a, "Neoverse E1"),
    (0x41, 0xd4b, "Cortex-A78C"),
    (0x41, 0xd4c, "Cortex-X1C"),
    (0x41, 0xd4d, "Cortex-A715"),
    (0x41, 0xd4e, "Cortex-X3"),
    (0x41, 0xd4f, "Neoverse V2"),
    (0x41, 0xd80, "Cortex-A520"),
    (0x41, 0xd81, "Cortex-A720"),
    (0x41, 0xd82, "Cortex-X4"),
    (0x41, 0xd84, "Neoverse V3"),
    (0x41, 0xd85, "Cortex-X925"),
    (0x41, 0xd87, "Cortex-A725"),
    (0x41, 0xd8e, "Neoverse N3"),
    (0x4e, 0x004, "NVIDIA Carmel"),
    (0xc0, 0xac3, "Ampere-1"),
    (0xc0, 0xac4, "Ampere-1a"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_the_system_tells_is_taken() {
        let text =
            "processor\t: 0\nmodel name\t: Some Processor 9000\n\nprocessor\t: 1\nmodel name\t: Some Processor 9000\n";
        assert_eq!(name(text).unwrap(), "Some Processor 9000");
    }

    #[test]
    fn arm_cores_are_named_once_a_kind() {
        let core = |number: u32, part: &str| {
            format!("processor\t: {number}\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU part\t: {part}\n\n")
        };
        let text = [core(0, "0xd05"), core(1, "0xd05"), core(2, "0xd0b"), core(3, "0xd0b")].concat();
        assert_eq!(name(&text).unwrap(), "Cortex-A55 and Cortex-A76");
        assert_eq!(name(&text[..core(0, "0xd05").len()]).unwrap(), "Cortex-A55");
    }

    #[test]
    fn an_unknown_core_is_told_by_its_numbers() {
        let text = "processor\t: 0\nCPU implementer\t: 0x61\nCPU part\t: 0x022\n";
        assert_eq!(name(text).unwrap(), "ARM core 0x022 of implementer 0x61");
    }

    #[test]
    fn without_a_description_there_is_no_name() {
        for text in ["", "processor\t: 0\n", "CPU implementer\t: 0x41\nCPU part\t: A53\n"] {
            assert_eq!(name(text), None);
        }
    }

    #[test]
    fn no_core_is_listed_twice() {
        assert!(CORES.windows(2).all(|pair| (pair[0].0, pair[0].1) < (pair[1].0, pair[1].1)));
    }
}
