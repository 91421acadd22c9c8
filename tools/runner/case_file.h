// A case file: {"schema_version": 1, "defaults": {...}, "sweep": {...}, "cases": [{"id": ..., "sweep": {...},
// ...}]}.
#pragma once

#include <string>
#include <vector>

#include "runner/case_spec.h"

namespace kvrope::regress {

// Reads the file and expands its sweeps: the product of the file's lists, then the case's, each in the file's
// order and the last one fastest. A case's list replaces the file's of the same key. A swept key may name a
// member of an object, as "table.width". Throws FileError.
std::vector<CaseSpec> read_case_file(const std::string& path);

// The same from the text of a file; `path` is what the cases carry as their file.
std::vector<CaseSpec> parse_case_file(const std::string& text, const std::string& path);

// Throws FileError for a name that occurs twice.
void check_unique_names(const std::vector<CaseSpec>& cases);

}  // namespace kvrope::regress
