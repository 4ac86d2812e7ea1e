// Failures of the machine, such as a full disk.
#pragma once

#include "core/error.h"

namespace megalith {

// A UserError that is no wrong input: exit code 1.
class MachineError : public UserError {
 public:
  using UserError::UserError;
};

// True if a file's failure is the disk's: it is full, broken, or beyond a limit.
bool is_of_disk(int error_number);

}  // namespace megalith
