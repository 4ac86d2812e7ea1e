// Libraries for communication between ranks.
#pragma once

#include <string>

namespace megalith {

struct BackEnds {
  bool has_gloo = false;     // between CPUs
  bool has_nccl = false;     // between GPUs; or AMD's RCCL
  std::string nccl_version;  // "2.27.3", as loaded; empty: none
};

BackEnds back_ends();

// 22703 is 2.27.3; before 2.9, 2804 was 2.8.4.
std::string nccl_version_text(int code);

}  // namespace megalith
