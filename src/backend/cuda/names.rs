//! The catalogue of embedded kernels: each family by its name, with the files and functions that are its variants.

macro_rules! catalogue {
    ($($family:ident: $($file:literal [$($name:literal),*]),*;)*) => {
        /// A family of kernels. Where it has several, the arguments and the shape of a launch choose: for every size of heads in `STAGED_DIMS` one of
        /// each `Attend`, for the widths 1, 2, 4 and 8 one of `Matmul`, those of `tensor` of `Tensor`, for each set of weight types, and number of rows,
        /// one of each `Matvec`, and one of `MatvecColumns` for each end of products.
        #[allow(missing_docs)] // Named as in `kernels/`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kernel { $($family),* }

        impl Kernel {
            /// Every family, in the order of its discriminants.
            pub const ALL: &[Kernel] = &[$(Kernel::$family),*];

            /// File and function of each variant.
            pub fn variants(self) -> &'static [(&'static str, &'static str)] {
                match self { $(Kernel::$family => &[$($(($file, $name)),*),*]),* }
            }
        }
    };
}

catalogue! {
    Step: "step" ["step_begin"];
    Select: "select" ["select_rows"];
    Norm: "norm" ["rms_norm"];
    Normalize: "normalize" ["normalize"];
    Heads: "heads" ["heads"];
    AttentionF16: "attention" ["attention_f16"];
    AttentionF32: "attention" ["attention_f32"];
    Merge: "attention" ["attention_merge"];
    Argmax: "argmax" ["argmax"];
    StepEnd: "argmax" ["step_end"];
    AttendMany: "attend" ["attend_many_64", "attend_many_80", "attend_many_96", "attend_many_128", "attend_many_256"];
    AttendOne: "attend" ["attend_one_64", "attend_one_80", "attend_one_96", "attend_one_128", "attend_one_256"];
    AttendPrompt: "prompt" ["prompt_64", "prompt_80", "prompt_96", "prompt_128", "prompt_256"];
    Matmul: "matmul" ["matmul_1", "matmul_2", "matmul_4", "matmul_8"];
    Matvec: "matvec" ["matvec_q4_k", "matvec_q5_k", "matvec_f32", "matvec_f16", "matvec_bf16", "matvec_q8_0", "matvec_q4_0", "matvec_q4_1",
            "matvec_q5_0", "matvec_q5_1", "matvec_q2_k", "matvec_q3_k", "matvec_iq4_nl", "matvec_iq4_xs", "matvec_mxfp4", "matvec_nvfp4",
            "matvec_bytes", "matvec_any"];
    Repack: "repack" ["repack"];
    Tensor: "matmul_tensor" ["tensor_8", "tensor_16", "tensor_32", "tensor_64", "tensor_many"],
        "matmul_narrow" ["narrow"],
        "matmul_wide" ["wide_1", "wide_2", "wide_few"],
        "matmul_loose" ["loose_16_128_1", "loose_16_64_1", "loose_16_64_2", "loose_32_128_1", "loose_32_64_1", "loose_32_64_2", "loose_64_128_1",
            "loose_64_64_1", "loose_64_64_2", "loose_128_128_1", "loose_128_128_2", "loose_256_128_1"],
        "matmul_skinny" ["skinny_8_1_1", "skinny_8_1_2", "skinny_8_2_1", "skinny_8_2_2", "skinny_16_1_1", "skinny_16_1_2", "skinny_16_2_1",
            "skinny_16_2_2"],
        "matmul_slim" ["slim_2_1", "slim_2_2", "slim_4_1", "slim_4_2"];
    Sample: "sample" ["sample"];
    AttendSplit: "attend_split" ["attend_split_64", "attend_split_80", "attend_split_96", "attend_split_128", "attend_split_256",
            "attend_split_many_64", "attend_split_many_80", "attend_split_many_96", "attend_split_many_128", "attend_split_many_256"];
    MatvecFew: "matvec_few" ["matvec_2_q4_k", "matvec_2_q5_k", "matvec_2_f32", "matvec_2_f16", "matvec_2_bf16", "matvec_2_q8_0", "matvec_2_q4_0",
            "matvec_2_q4_1", "matvec_2_q5_0", "matvec_2_q5_1", "matvec_2_q2_k", "matvec_2_q3_k", "matvec_2_iq4_nl", "matvec_2_iq4_xs",
            "matvec_2_mxfp4", "matvec_2_nvfp4", "matvec_2_bytes", "matvec_4_q4_k", "matvec_4_q5_k", "matvec_4_f32", "matvec_4_f16",
            "matvec_4_bf16", "matvec_4_q8_0", "matvec_4_q4_0", "matvec_4_q4_1", "matvec_4_q5_0", "matvec_4_q5_1", "matvec_4_q2_k", "matvec_4_q3_k",
            "matvec_4_iq4_nl", "matvec_4_iq4_xs", "matvec_4_mxfp4", "matvec_4_nvfp4", "matvec_4_bytes"];
    NormParts: "norm" ["rms_norm_parts"];
    MatvecWhole: "matvec_whole" ["whole_q4_k", "whole_q5_k", "whole_q8_0", "whole_q4_0", "whole_q4_1", "whole_q5_0", "whole_q5_1"],
        "matvec_q2_k" ["whole_q2_k"],
        "matvec_whole" ["whole_q3_k", "whole_iq4_nl", "whole_iq4_xs", "whole_mxfp4", "whole_nvfp4", "whole_bytes"];
    MatvecColumns: "matvec_q2_k" ["columns_gated", "columns_plain", "columns_head"];
    MatvecMixed: "matvec_mixed" ["matvec_q4_k_q5_k", "matvec_q2_k_q4_k", "matvec_q3_k_q4_k", "matvec_q3_k_q5_k", "matvec_iq4_nl_q5_k",
            "matvec_iq4_xs_q5_k"];
    Rope: "rope" ["rope"];
    CopyRows: "elementwise" ["copy_rows"];
    Add: "elementwise" ["add"];
    AddScaled: "elementwise" ["add_scaled"];
    Mul: "elementwise" ["mul"];
    Scale: "elementwise" ["scale"];
    Softcap: "elementwise" ["softcap"];
    Temperature: "elementwise" ["temperature"];
    Sigmoid: "elementwise" ["sigmoid"];
    SigmoidMul: "elementwise" ["sigmoid_mul"];
    GeluErf: "elementwise" ["gelu_erf"];
    GeluErfMul: "elementwise" ["gelu_erf_mul"];
    SquaredRelu: "elementwise" ["squared_relu"];
    SquaredReluMul: "elementwise" ["squared_relu_mul"];
    ClampedSiluMul: "elementwise" ["clamped_silu_mul"];
}

/// One kernel of the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// The family.
    pub kernel: Kernel,
    /// Which of its kernels.
    pub variant: usize,
}

impl Function {
    /// Its file and its name there.
    pub fn name(self) -> (&'static str, &'static str) {
        self.kernel.variants()[self.variant]
    }
}

/// The files whose kernels are only in machine code for compute capability 9.0.
pub(super) const NATIVE_FILES: [&str; 2] = ["matmul_loose", "matmul_skinny"];
