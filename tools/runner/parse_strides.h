// The key `inputs.strides`: one of the named kinds, or an object with the strides and offset of single
// tensors.
#pragma once

#include "runner/case_spec.h"
#include "runner/object_reader.h"

namespace kvrope::regress {

void apply_strides(InputsSpec& inputs, const ObjectReader& reader);

// Throws FileError where the strides of a tensor do not go with the rest of the case.
void check_strides(const CaseSpec& spec);

}  // namespace kvrope::regress
