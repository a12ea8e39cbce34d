// What libdemo.so offers. Each function runs one kernel on the first GPU, checks what it computed and says on
// standard error what went wrong. Only the fatbin region of that kernel is loaded.

enum demo_status { DEMO_OK = 0, DEMO_FAILED = 1, DEMO_NO_DRIVER = 4 };

enum demo_status demo_matmul(void);
enum demo_status demo_fill(void);
enum demo_status demo_overrun(void); // whose kernel writes beyond its memory
