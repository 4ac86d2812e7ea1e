// What CVS looks at of a machine's network: the cards and interfaces that its file names, and the counters of errors of
// RDMA ports before and after a run (verify_network_errors).
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

// "bnxt_re0 port 1 rx_errors" -> how often; only those whose names speak of errors.
using CvsCounters = std::map<std::string, int64_t>;

// machine  below it lies sys/class/infiniband/*/ports/*/{counters,hw_counters}; "/" but in tests
CvsCounters read_error_counters(const std::filesystem::path& machine);

// A counter that grew is an error. Nothing to compare is a note.
CvsFindings compare_error_counters(const CvsCounters& before, const CvsCounters& after);

// Whether each of nccl_ib_hca_list, and of nccl_socket_ifname and gloo_socket_ifname, is there; interfaces must be up.
CvsFindings check_network_names(const CvsConfig& config, const std::filesystem::path& machine);

}  // namespace megalith
