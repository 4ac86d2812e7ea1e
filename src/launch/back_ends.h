// Which libraries the ranks of this program can talk over.
#pragma once

#include <string>

namespace megalith {

struct BackEnds {
  bool has_gloo = false;     // between CPUs
  bool has_nccl = false;     // between GPUs; AMD's RCCL goes by the same name
  std::string nccl_version;  // "2.27.3", of the library that is loaded; empty when there is none
};

BackEnds back_ends();

// 22703 is 2.27.3; before 2.9 it was 2804 for 2.8.4.
std::string nccl_version_text(int code);

}  // namespace megalith
