// CVS's checks of a machine's network: the cards and interfaces that its file names, and the error counters of RDMA
// ports before and after a run (verify_network_errors).
//
// Source: ROCm/cvs, cvs/lib/megatron_training_lib.py and its guide; Linux,
// Documentation/ABI/stable/sysfs-class-infiniband.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "compat/cvs_judge.h"

namespace megalith {

// "bnxt_re0 port 1 rx_errors" -> count; only counters whose names indicate errors.
using CvsCounters = std::map<std::string, int64_t>;

// machine  root of sys/class/infiniband/*/ports/*/{counters,hw_counters}; "/" except in tests
CvsCounters read_error_counters(const std::filesystem::path& machine);

// A counter that grew is an error; nothing to compare is a note.
CvsFindings compare_error_counters(const CvsCounters& before, const CvsCounters& after);

// Checks that each of nccl_ib_hca_list, nccl_socket_ifname and gloo_socket_ifname exists; interfaces must be up.
CvsFindings check_network_names(const CvsConfig& config, const std::filesystem::path& machine);

}  // namespace megalith
