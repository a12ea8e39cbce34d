// This file is empty because it chooses no older versions of glibc's symbols. So a build runs only with the
// glibc that it was made with, or a later one.
