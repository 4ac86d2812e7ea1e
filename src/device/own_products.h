// Who multiplies fp32 matrices on this CPU.
#pragma once

namespace megalith {

// True if linear layers' products are ours: on AMD with AVX-512, where LibTorch's library stays on AVX2. The
// processor's kind decides, no measurement, so that ranks and resumed runs agree. ATEN_CPU_CAPABILITY=avx2 takes the
// library's.
bool has_own_fp32_products();

}  // namespace megalith
