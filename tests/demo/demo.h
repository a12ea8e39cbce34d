// What libdemo.so offers. Each function runs one kernel on the first GPU, checks the result, and says so on
// standard error if it's wrong. Only that kernel's fatbin region is loaded.

enum demo_status { DEMO_OK = 0, DEMO_FAILED = 1, DEMO_NO_DRIVER = 4 };

enum demo_status demo_matmul(void);
enum demo_status demo_fill(void);
enum demo_status demo_overrun(void); // its kernel writes beyond its memory
