#include "pretend/blas/cublaslt.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "pretend/blas/include/cublasLt.h"

struct cublasLtContext {};
struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType_t type;
  int64_t rows, columns, leading;
};
struct cublasLtMatmulDescOpaque_t {
  cublasOperation_t of_a = CUBLAS_OP_N, of_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  int32_t bias_type = -1;  // unset: that of D
  const float *scale_a = nullptr, *scale_b = nullptr;
  int32_t mode_a = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, mode_b = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  int8_t has_fast_sums = 0;
};
struct cublasLtMatmulPreferenceOpaque_t {
  uint64_t most_workspace = 0;
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint32_t alignment_a = 256, alignment_b = 256, alignment_c = 256, alignment_d = 256;
};

namespace megalith::pretend {

CublasLt& cublaslt() {
  static CublasLt state;
  return state;
}

namespace {

using Layout = cublasLtMatrixLayoutOpaque_t;
using Description = cublasLtMatmulDescOpaque_t;

cublasStatus_t refuse(const std::string& why) {
  cublaslt().last_refusal = why;
  return CUBLAS_STATUS_INVALID_VALUE;
}

template <typename Object>
cublasStatus_t destroy(Object* object) {
  if (object == nullptr) return refuse("nothing is destroyed");
  delete object;
  --cublaslt().num_objects;
  return CUBLAS_STATUS_SUCCESS;
}
template <typename Object>
cublasStatus_t create(Object** place, const Object& object) {
  *place = new Object(object);
  ++cublaslt().num_objects;
  return CUBLAS_STATUS_SUCCESS;
}

// hipBLASLt's (hipblaslt.cc).
constexpr auto kE4m3Fnuz = static_cast<cudaDataType_t>(1000), kE5m2Fnuz = static_cast<cudaDataType_t>(1001);

bool is_e5m2(cudaDataType_t type) { return type == CUDA_R_8F_E5M2 || type == kE5m2Fnuz; }
bool is_fp8(cudaDataType_t type) { return type == CUDA_R_8F_E4M3 || type == kE4m3Fnuz || is_e5m2(type); }
uint64_t bytes_of(cudaDataType_t type) {
  if (is_fp8(type)) return 1;
  return type == CUDA_R_32F ? 4 : 2;
}

float widen_fp8(uint8_t bits, int exponent_bits, int bias, bool has_infinity) {
  const int mantissa_bits = 7 - exponent_bits, most = (1 << exponent_bits) - 1;
  const int exponent = bits >> mantissa_bits & most, mantissa = bits & ((1 << mantissa_bits) - 1);
  const bool is_nan = exponent == most && (has_infinity ? mantissa != 0 : mantissa == (1 << mantissa_bits) - 1);
  float value = 0;
  if (is_nan)
    value = NAN;
  else if (has_infinity && exponent == most)
    value = INFINITY;
  else if (exponent == 0)
    value = std::ldexp(static_cast<float>(mantissa), 1 - bias - mantissa_bits);
  else
    value = std::ldexp(static_cast<float>(mantissa + (1 << mantissa_bits)), exponent - bias - mantissa_bits);
  return (bits & 0x80) != 0 ? -value : value;
}

// One zero, one NaN, no infinities.
float widen_fnuz(uint8_t bits, int exponent_bits, int bias) {
  const int mantissa_bits = 7 - exponent_bits, exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1), hidden = exponent == 0 ? 0 : 1 << mantissa_bits;
  if (bits == 0x80) return NAN;
  const float value = std::ldexp(static_cast<float>(mantissa + hidden), std::max(exponent, 1) - bias - mantissa_bits);
  return (bits & 0x80) != 0 ? -value : value;
}

float load(const void* data, cudaDataType_t type, int64_t i) {
  if (type == kE4m3Fnuz) return widen_fnuz(static_cast<const uint8_t*>(data)[i], 4, 8);
  if (type == kE5m2Fnuz) return widen_fnuz(static_cast<const uint8_t*>(data)[i], 5, 16);
  switch (type) {
    case CUDA_R_32F:
      return static_cast<const float*>(data)[i];
    case CUDA_R_16F:
      return static_cast<float>(static_cast<const _Float16*>(data)[i]);
    case CUDA_R_16BF:
      return std::bit_cast<float>(uint32_t{static_cast<const uint16_t*>(data)[i]} << 16);
    case CUDA_R_8F_E4M3:
      return widen_fp8(static_cast<const uint8_t*>(data)[i], 4, 7, false);
    default:
      return widen_fp8(static_cast<const uint8_t*>(data)[i], 5, 15, true);
  }
}
void store(void* data, cudaDataType_t type, int64_t i, float value) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(data)[i] = value;
  } else if (type == CUDA_R_16F) {
    static_cast<_Float16*>(data)[i] = static_cast<_Float16>(value);
  } else {
    const auto bits = std::bit_cast<uint32_t>(value);
    const bool is_nan = value != value;
    static_cast<uint16_t*>(data)[i] =
        is_nan ? uint16_t{0x7FC0} : static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
  }
}

// op(x) with its second dim contiguous, or its first.
std::vector<float> widen(const void* data, const Layout& x, bool is_second_contiguous, bool is_transposed) {
  std::vector<float> wide(static_cast<size_t>(x.rows * x.columns));
  const bool goes_by_column = is_second_contiguous == is_transposed;  // of x as stored
  for (int64_t column = 0; column < x.columns; ++column) {
    for (int64_t row = 0; row < x.rows; ++row) {
      const int64_t place = goes_by_column ? column * x.rows + row : row * x.columns + column;
      wide[static_cast<size_t>(place)] = load(data, x.type, column * x.leading + row);
    }
  }
  return wide;
}

struct Sizes {
  int64_t m, n, k;
};

constexpr int64_t kScaledBlock = 128;
bool is_in_blocks(int32_t mode) { return mode != CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F; }

// Scale of an operand's number at `outer` of m or n and `inner` of k. Scales of vectors of 128 along the sum are
// contiguous along `outer`; those of squares are in rows along the sum, each padded to a multiple of four.
float scale_at(const float* scales, int32_t mode, int64_t num_outer, int64_t num_inner, int64_t outer, int64_t inner) {
  const int64_t block = inner / kScaledBlock;
  if (mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F) return scales[block * num_outer + outer];
  const int64_t row_length = (num_inner / kScaledBlock + 3) / 4 * 4;
  return scales[outer / kScaledBlock * row_length + block];
}

// Empty when the library multiplies by these.
std::string fault_of_scales(const Description& call, bool is_fp8, const Sizes& sizes) {
  const bool is_a = is_in_blocks(call.mode_a), is_b = is_in_blocks(call.mode_b);
  if (!is_a && !is_b) return "";
  if (!is_fp8) return "scales of blocks are for FP8";
  if (is_a != is_b) return "both operands have scales of blocks, or neither";
  if (call.scale_a == nullptr || call.scale_b == nullptr) return "scales of blocks without an address";
  for (const int32_t mode : {call.mode_a, call.mode_b}) {
    if (mode != CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F && mode != CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F) {
      return "a mode of scales that is not known";
    }
  }
  if (call.mode_a == call.mode_b && call.mode_a == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F) {
    return "two operands in squares";
  }
  if (call.has_fast_sums != 0) return "scales of blocks have no fast sums";
  if (sizes.k % kScaledBlock != 0) return "the sum ends within a block";
  return "";
}

// Empty when the library multiplies these.
std::string fault_of(const Description& call, const Layout& a, const Layout& b, const Layout& c, Sizes& sizes) {
  const bool is_a_transposed = call.of_a == CUBLAS_OP_T, is_b_transposed = call.of_b == CUBLAS_OP_T;
  sizes = {is_a_transposed ? a.columns : a.rows, is_b_transposed ? b.rows : b.columns,
           is_a_transposed ? a.rows : a.columns};
  if (sizes.k != (is_b_transposed ? b.columns : b.rows)) return "A and B do not fit";
  if (c.rows != sizes.m || c.columns != sizes.n) return "the result does not fit";
  if (is_fp8(a.type) != is_fp8(b.type) || (!is_fp8(a.type) && a.type != b.type)) return "types do not multiply";
  if (is_fp8(c.type)) return "a result of eight bits needs a scale";
  if (is_fp8(a.type)) {
    const bool runs_along_sum = is_a_transposed && !is_b_transposed;
    if (!runs_along_sum && !cublaslt().takes_any_fp8_layout) return "FP8: rows of A and of B must run along the sum";
    if (is_e5m2(a.type) && is_e5m2(b.type)) return "FP8: two E5M2";
    if (sizes.m % 16 != 0 || sizes.k % 16 != 0) return "FP8: sizes are multiples of 16";
  } else {
    if (c.type != CUDA_R_32F && c.type != a.type) return "this type is no result of these";
    if (call.scale_a != nullptr || call.scale_b != nullptr) return "scales are for FP8";
    if (call.has_fast_sums != 0) return "fast sums are for FP8";
  }
  if (const std::string fault = fault_of_scales(call, is_fp8(a.type), sizes); !fault.empty()) return fault;
  if (call.epilogue == CUBLASLT_EPILOGUE_BIAS) {
    if (call.bias == nullptr) return "a bias without an address";
    if (call.bias_type >= 0 && call.bias_type != c.type) return "a bias of another type than the result";
  }
  return "";
}

// Contents of an algorithm: {number, product, the alignment that it was promised, kMagic}.
constexpr uint64_t kMagic = 0x6d6567616c697468;
uint64_t product_of(const Description& call, const Layout& a, const Layout& b, const Layout& c) {
  uint64_t hash = static_cast<uint64_t>(call.of_a) * 2 + static_cast<uint64_t>(call.of_b);
  for (const Layout* x : {&a, &b, &c}) {
    for (const int64_t number : {static_cast<int64_t>(x->type), x->rows, x->columns, x->leading}) {
      hash = hash * 1000003 + static_cast<uint64_t>(number);
    }
  }
  hash = hash * 64 + static_cast<uint64_t>(call.mode_a * 8 + call.mode_b);
  return hash * 4 + static_cast<uint64_t>(call.epilogue);
}

bool is_aligned(const void* data, const Layout& x, uint64_t alignment) {
  return (reinterpret_cast<uintptr_t>(data) | static_cast<uint64_t>(x.leading) * bytes_of(x.type)) % alignment == 0;
}

// A product as the library was asked for it. Memory at the addresses is read when it runs.
struct Product {
  Description description;
  Layout a_layout, b_layout, c_layout;
  Sizes sizes;
  const void *a, *b, *c;
  void *d, *workspace;
  float alpha, beta;
};

void multiply(const Product& p) {
  const auto& [m, n, k_size] = p.sizes;
  std::memset(p.workspace, 0xFF, kWorkspaceBytes);  // no caller may keep anything there
  const Description& description = p.description;
  const bool has_blocks = is_in_blocks(description.mode_a);
  const auto whole = [&](const float* scales) { return has_blocks || scales == nullptr ? 1 : *scales; };
  const float scale = p.alpha * whole(description.scale_a) * whole(description.scale_b);
  std::vector<float> of_a = widen(p.a, p.a_layout, false, description.of_a == CUBLAS_OP_T);  // (k, m)
  std::vector<float> of_b = widen(p.b, p.b_layout, true, description.of_b == CUBLAS_OP_T);   // (k, n)
  for (int64_t k = 0; has_blocks && k < k_size; ++k) {
    for (int64_t row = 0; row < m; ++row) {
      of_a[static_cast<size_t>(k * m + row)] *= scale_at(description.scale_a, description.mode_a, m, k_size, row, k);
    }
    for (int64_t column = 0; column < n; ++column) {
      of_b[static_cast<size_t>(k * n + column)] *=
          scale_at(description.scale_b, description.mode_b, n, k_size, column, k);
    }
  }
  std::vector<float> sums(static_cast<size_t>(m));
  for (int64_t column = 0; column < n; ++column) {
    std::fill(sums.begin(), sums.end(), 0.0f);
    for (int64_t k = 0; k < k_size; ++k) {
      const float of_column = of_b[static_cast<size_t>(k * n + column)];
      const float* of_row = of_a.data() + k * m;
      for (int64_t row = 0; row < m; ++row) sums[static_cast<size_t>(row)] += of_row[row] * of_column;
    }
    for (int64_t row = 0; row < m; ++row) {
      const int64_t place = column * p.c_layout.leading + row;
      float value = scale * sums[static_cast<size_t>(row)];
      if (p.beta != 0) value += p.beta * load(p.c, p.c_layout.type, place);  // otherwise C is not read
      if (p.description.epilogue == CUBLASLT_EPILOGUE_BIAS) {
        value += load(p.description.bias, p.c_layout.type, row);
      }
      store(p.d, p.c_layout.type, place, value);
    }
  }
}

void (*runner)(const std::function<void()>&) = nullptr;

void run_product(const Product& product) {
  const auto run = [product] { multiply(product); };
  runner != nullptr ? runner(run) : run();
}

}  // namespace

int type_of(const cublasLtMatrixLayoutOpaque_t* layout) { return layout->type; }

void run_products_through(void (*run)(const std::function<void()>& product)) { runner = run; }

}  // namespace megalith::pretend

using namespace megalith::pretend;

extern "C" {

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int /*device*/) {
  *properties = {"a pretend accelerator", 9, 0};
  return 0;
}

size_t cublasLtGetVersion() { return cublaslt().version; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  static cublasLtContext context;
  *handle = &context;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type, uint64_t rows,
                                          uint64_t cols, int64_t ld) {
  if (rows == 0 || cols == 0) return refuse("an empty matrix");
  if (ld < static_cast<int64_t>(rows)) return refuse("columns lie within each other");
  return create(layout, {type, static_cast<int64_t>(rows), static_cast<int64_t>(cols), ld});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return destroy(layout); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return refuse("sums and factors are fp32");
  return create(description, {});
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) { return destroy(description); }

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              size_t bytes) {
  const auto set = [&](auto& member) {
    if (bytes != sizeof(member)) return refuse("an attribute of another size");
    std::memcpy(&member, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  };
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(description->of_a);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(description->of_b);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(description->epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(description->bias);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return set(description->bias_type);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return set(description->scale_a);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return set(description->scale_b);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
      return set(description->has_fast_sums);
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
      return set(description->mode_a);
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
      return set(description->mode_b);
  }
  return refuse("an attribute that is not known");
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) { return create(preference, {}); }
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) { return destroy(preference); }

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t bytes) {
  const auto set = [&](auto& member) {
    if (bytes != sizeof(member)) return refuse("a preference of another size");
    std::memcpy(&member, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  };
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return set(preference->most_workspace);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return set(preference->reductions);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return set(preference->alignment_a);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return set(preference->alignment_b);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return set(preference->alignment_c);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return set(preference->alignment_d);
  }
  return refuse("a preference that is not known");
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t /*d*/,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t* results, int* returned) {
  *returned = 0;
  Sizes sizes{};
  const std::string fault = fault_of(*description, *a, *b, *c, sizes);
  if (!fault.empty()) return refuse(fault);
  if (preference->reductions != CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) {
    return refuse("parts of sums may be rounded to 16 bits");
  }
  if (preference->most_workspace < kWorkspaceBytes) return CUBLAS_STATUS_NOT_SUPPORTED;
  const uint64_t promised =
      preference->alignment_a | uint64_t{preference->alignment_b} << 16 | uint64_t{preference->alignment_c} << 32;
  for (; *returned < requested && *returned < kNumAlgorithms; ++*returned) {
    cublasLtMatmulHeuristicResult_t& one = results[*returned];
    one = {};
    one.algo = {{static_cast<uint64_t>(*returned), product_of(*description, *a, *b, *c), promised, kMagic}};
    one.workspaceSize = kWorkspaceBytes;
    one.state = CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t description, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes,
                              cudaStream_t /*stream*/) {
  Sizes sizes{};
  const std::string fault = fault_of(*description, *a_layout, *b_layout, *c_layout, sizes);
  if (!fault.empty()) return refuse(fault);
  const auto& [number, product, promised, magic, unused4, unused5, unused6, unused7] = algorithm->data;
  if (magic != kMagic || number >= kNumAlgorithms) return refuse("no algorithm of this library");
  if (product != product_of(*description, *a_layout, *b_layout, *c_layout)) {
    return refuse("the algorithm is that of another product");
  }
  if (!is_aligned(a, *a_layout, promised & 0xFFFF) || !is_aligned(b, *b_layout, promised >> 16 & 0xFFFF) ||
      !is_aligned(c, *c_layout, promised >> 32 & 0xFFFF)) {
    return refuse("a matrix is aligned less than the algorithm was promised");
  }
  if (workspace == nullptr || workspace_bytes < kWorkspaceBytes || reinterpret_cast<uintptr_t>(workspace) % 16 != 0) {
    return refuse("the workspace is too small or not aligned");
  }
  if (c != d || c_layout != d_layout) return refuse("the double writes only where C lies");

  CublasLt& state = cublaslt();
  ++state.num_products;
  const bool has_blocks = is_in_blocks(description->mode_a);
  if (is_fp8(a_layout->type)) ++state.num_fp8_products;
  if (has_blocks) ++state.num_block_products;
  state.last_algorithm = static_cast<int>(number);
  if (state.quick_algorithm >= 0 && state.last_algorithm != state.quick_algorithm) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  run_product({*description, *a_layout, *b_layout, *c_layout, sizes, a, b, c, d, workspace,
               *static_cast<const float*>(alpha), *static_cast<const float*>(beta)});
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
